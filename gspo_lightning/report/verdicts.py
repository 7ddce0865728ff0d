"""Judge the curves of a run, in sentences with their reasons."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gspo_lightning.report.run import Run, number
from gspo_lightning.report.words import arrow, count, known, plain, two

LEARNED = 0.02
"""Smallest change of held-out accuracy that counts: one standard error of 512 prompts."""
FALLEN = 0.05
"""Smallest fall of the last accuracy below the best one that is reported."""
RESTLESS, SPIKY = 10.0, 20.0
"""Largest gradient norm divided by the median: above the first value restless, above the second spikes.

Healthy quickstarts: 3 to 9 (GSPO and GRPO, seeds 1 to 3). The median is low if most of a batch is clipped or has
nothing to teach.
"""
TOKEN_LEVEL_CLIPS = 0.05
"""Fraction above which a token-level objective clips far more than in the paper (0.0013)."""
LOW_ENTROPY = 0.01
"""Entropy in nats per token below which nearly every token is certain."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A judgement: ``topic`` (learning, stability ...), ``word``, and the ``sentence`` with its numbers."""

    topic: str
    word: str
    sentence: str


def verdicts(run: Run) -> list[Verdict]:
    """Return the verdicts, one per topic; topics without numbers are left out."""
    judges = (_collapse, _finite, _learning, _stability, _clipping, _length, _entropy, _dead_groups, _noise)
    return [verdict for judge in judges if (verdict := judge(run)) is not None]


def _collapse(run: Run) -> Verdict | None:
    """Return the verdict on the run's alarms; None if the run was not watched."""
    if not run.alarms:
        watched = "collapse/alarms" in run.scalars
        return Verdict("collapse", "none", "no signature of collapse was recognised") if watched else None
    back = run.get("collapse/rollbacks")
    rolled = f"; rolled back {count(int(back.values[-1]), 'time')}" if back is not None and back.values[-1] else ""
    found = [
        f"{str(alarm.get('signature', '?')).replace('_', ' ')} since update {alarm['since']} "
        f"({alarm.get('what', '?')}; {alarm.get('action', '?')} at {alarm['update']})"
        for alarm in run.alarms[:4]
    ]
    more = f"; and {len(run.alarms) - 4} more in alarms.json" if len(run.alarms) > 4 else ""
    return Verdict("collapse", "recognised", "; ".join(found) + more + rolled)


def _finite(run: Run) -> Verdict | None:
    bad = {t: s for t, s in run.scalars.items() if not np.isfinite(s.values).all()}
    if not bad:
        return None
    first = min(int(s.steps[~np.isfinite(s.values)][0]) for s in bad.values())
    return Verdict("numbers", "not finite", f"{', '.join(sorted(bad)[:4])} not finite from update {first} on")


def _learning(run: Run) -> Verdict | None:
    before, after = run.held_out()
    if before is None or after is None:
        return _reward_only(run)
    change = after - before
    series = run.get(run.held_out_tag)
    scale = 1.0 if run.shown_by == "accuracy" else max(abs(before), abs(after))  # a reward has its own unit
    word = "learned" if change > LEARNED * scale else "unlearned" if change < -LEARNED * scale else "no change"
    start = "" if series is None or series.steps[0] == 0 else f" (first evaluated after {series.steps[0]} updates)"
    sentence = f"held-out {run.shown_by} {two(before)} → {two(after)} in {count(run.updates, 'update')}{start}"
    best = after if series is None else float(series.values.max())
    if series is not None and best > max(after + FALLEN * scale, before + LEARNED * scale):
        peak = int(series.steps[series.values.argmax()])
        word, sentence = "learned, then fell back", f"{sentence}; its best was {best:.2f} after {peak}"
    return Verdict("learning", word, sentence)


def _reward_only(run: Run) -> Verdict | None:
    reward = run.first_and_last("reward/mean")
    if reward is None:
        return None
    sentence = f"no two evaluations to compare; training reward {arrow(reward)} in {count(run.updates, 'update')}"
    return Verdict("learning", "not evaluated", sentence)


def _stability(run: Run) -> Verdict | None:
    series = run.get("optim/gradient_norm")
    if series is None or (median := float(np.median(series.values))) <= 0:
        return None
    largest, at = float(series.values.max()), int(series.steps[series.values.argmax()])
    factor = largest / median
    word = "spikes" if factor > SPIKY else "restless" if factor > RESTLESS else "steady"
    sentence = f"largest gradient norm {plain(largest)} = {factor:.1f} x the median {plain(median)}, at update {at}"
    drift = run.get("kl/old_new_k3")
    if drift is not None:
        sentence += f"; KL to the old policy at most {plain(float(drift.values.max()))} nats per token"
    return Verdict("stability", word, sentence)


def _clipping(run: Run) -> Verdict | None:
    series = run.get("clip/tokens")
    if series is None:
        return None
    mean = float(series.values.mean())
    share = f"{100 * mean:.3g}% of response tokens clipped"
    if mean == 0:
        why = "usual with one update per rollout; with several, the clip range is too wide to act"
        return Verdict("clipping", "never", f"{share}: {why}")
    if run.sequence_level:
        why = "many is normal for a sequence ratio with a tight range (15% in the GSPO paper)"
        return Verdict("clipping", "usual" if mean <= 0.75 else "heavy", f"{share}: {why}")
    word = "heavy" if mean > TOKEN_LEVEL_CLIPS else "usual"
    return Verdict("clipping", word, f"{share}: token-level objectives clip few (0.13% in the GSPO paper)")


def _length(run: Run) -> Verdict | None:
    pair = known(run, "response/length")
    if pair is None or pair[0] <= 0:
        return None
    factor = pair[1] / pair[0]
    word = "longer" if factor > 1.1 else "shorter" if factor < 0.9 else "as before"
    sentence = f"{pair[0]:.1f} → {pair[1]:.1f} tokens per response"
    truncated = known(run, "response/truncated")
    if truncated is not None:
        sentence += f", truncated {100 * truncated[0]:.3g}% → {100 * truncated[1]:.3g}%"
        if truncated[1] > 0.1:
            word += ", often cut"
            sentence += ": raise data.max_response_tokens"
    return Verdict("length", word, sentence)


def _entropy(run: Run) -> Verdict | None:
    pair = known(run, "policy/entropy")
    if pair is None:
        return None
    sentence = f"{plain(pair[0])} → {plain(pair[1])} nats per token"
    after, reward = run.accuracy()[1], known(run, "reward/mean")
    if pair[1] < LOW_ENTROPY:
        good = after is not None and after > 0.9
        why = "the task is solved and the policy is sure" if good else "little is left to explore"
        return Verdict("entropy", "nearly none", f"{sentence}: {why}")
    flat = reward is not None and reward[1] <= reward[0]
    if pair[1] > 1.5 * pair[0] and flat:
        return Verdict("entropy", "rising", f"{sentence} while the reward does not rise: the policy is dissolving")
    word = "rising" if pair[1] > 1.1 * pair[0] else "falling" if pair[1] < 0.9 * pair[0] else "as before"
    return Verdict("entropy", word, sentence)


def _dead_groups(run: Run) -> Verdict | None:
    pair, reward = known(run, "reward/dead_groups"), known(run, "reward/mean")
    if pair is None:
        return None
    sentence = f"{100 * pair[0]:.0f}% → {100 * pair[1]:.0f}% of groups have all rewards equal"
    if pair[1] <= 0.5:
        return Verdict("dead groups", "few" if pair[1] <= 0.25 else "some", sentence)
    solved = reward is not None and reward[1] > 0.8
    why = (
        "most prompts are solved"
        if solved
        else "most prompts teach nothing: use easier or harder ones, or larger groups"
    )
    return Verdict("dead groups", "many", f"{sentence}: {why}")


def _noise(run: Run) -> Verdict | None:
    """Return the verdict on the sampler's noise; None if it is small against the clip range."""
    gap = run.get("noise/sampler_sequence_gap")
    ranges = [number(run.setting("model", "objective", "init_args", side)) for side in ("clip_low", "clip_high")]
    known = [r for r in ranges if r]
    if gap is None or not known or (largest := float(gap.values.max())) <= 0.1 * min(known):
        return None
    sentence = (
        f"the sampler's log-probabilities differ from the trainer's by {plain(largest)} nats per token and sequence, "
        f"against a clip range of {plain(min(known))}: keep old log-probabilities from the trainer"
    )
    return Verdict("noise", "above a tenth of the clip range", sentence)
