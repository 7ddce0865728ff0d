"""Judge a run by its numbers: one list of verdicts, with their reasons, for the report and for the page.

Thresholds are the healthy bands and the alarm rules of the metrics' definitions, nowhere else
(:mod:`gspo_lightning.core.metric_table`). A verdict is ``bad`` where training's watch raises an alarm, or where the
setup is at fault; ``look`` where a metric is outside of its band.
"""

from __future__ import annotations

import numpy as np

from gspo_lightning.core.metric_table.spec import RULES, threshold
from gspo_lightning.report.ending import band_of, end, healthy, later, value_of
from gspo_lightning.report.learning import (
    judge_dead_groups,
    judge_entropy,
    judge_gamed,
    judge_learning,
    judge_length,
)
from gspo_lightning.report.replay import replayed
from gspo_lightning.report.run import Run, Series
from gspo_lightning.report.verdict import Level, Verdict, worst_first
from gspo_lightning.report.words import count, plain

ONE_SIDED = 0.8
"""Share of the sampler's gap that its mean must have for the gap to be one-sided: rounding goes both ways."""
HISTORY = 64
"""Gradient norms whose median is the usual one."""
EARLIER = 8
"""The fewest of them."""
BOUNDS = ("clip/low", "clip/high", "objective/clip_fraction_dual")
"""Metrics of objectives that clip: others, as CISPO, log that they clip nothing."""
JUDGED = (
    "reward/dead_groups", "reward/std", "response/truncated", "response/terminated", "clip/tokens", "policy/entropy",
    "optim/gradient_spike", "noise/sampler_logprob_gap", "noise/sampler_sequence_gap", "reward/missing",
    "reward/timeouts",
)  # fmt: skip
"""Metrics with a verdict of their own, or a synonym of one that has it; all others share the last one."""


def verdicts(run: Run) -> list[Verdict]:
    """Return the verdicts, at most one per topic, the worst first; topics without numbers are left out."""
    judges = (
        _collapse, _finite, judge_learning, judge_gamed, _stability, _clipping, judge_dead_groups, judge_length,
        judge_entropy, _sampler, _staleness, _faults, _histories, _others,
    )  # fmt: skip
    return worst_first([verdict for judge in judges if (verdict := judge(run)) is not None])


def _collapse(run: Run) -> Verdict | None:
    """Return the verdict on alarms: those that were raised, or would have been in a run that was not watched."""
    watched = bool(run.alarms) or "collapse/alarms" in run.scalars
    alarms = run.alarms if watched else [{**a.state_dict(), "action": "not watched"} for a in replayed(run)]
    alarms = [alarm for alarm in alarms if watched or alarm["signature"] not in run.ignored]
    if not alarms:
        return Verdict("collapse", "fine", "none", "no signature of collapse was recognised") if watched else None
    back = run.get("collapse/rollbacks")
    rolled = f"; rolled back {count(int(back.values[-1]), 'time')}" if back is not None and back.values[-1] else ""
    named = [
        f"{str(alarm.get('signature', '?')).replace('_', ' ')} since update {alarm['since']} "
        f"({alarm.get('what', '?')}; {alarm.get('action', '?')} at {alarm['update']})"
        for alarm in alarms[:4]
    ]
    more = f"; and {len(alarms) - 4} more in alarms.json" if len(alarms) > 4 else ""
    return Verdict("collapse", "bad", "recognised", "; ".join(named) + more + rolled)


def _finite(run: Run) -> Verdict | None:
    bad = {t: s for t, s in run.scalars.items() if not np.isfinite(s.values).all()}
    if not bad:
        return None
    first = min(int(s.steps[~np.isfinite(s.values)][0]) for s in bad.values())
    sentence = f"{', '.join(sorted(bad)[:4])} not finite from update {first} on"
    return Verdict("numbers", "bad", "not finite", sentence)


def _stability(run: Run) -> Verdict | None:
    """Return the verdict by the rule of the alarm ``gradient_spikes``: one spike alone occurs in healthy runs."""
    series = run.get("optim/gradient_norm")
    if series is None or not (series.values > 0).any():
        return None
    median = float(np.median(series.values[series.values > 0]))
    largest = float(series.values.max())
    at = int(series.steps[series.values.argmax()])
    spikes = _spikes(run, series)
    rule = RULES["gradient_spikes"]
    high = spikes > threshold("gradient_spikes.factor")
    several = max((int(high[i : i + (rule.window or 1)].sum()) for i in range(len(high))), default=0)
    bad = several >= (rule.hits or 1) or spikes.max() > threshold("gradient_spikes.huge")
    word = "spikes" if bad else "restless" if high.any() else "steady"
    level: Level = "fine" if word == "steady" else "bad" if bad and "gradient_spikes" not in run.ignored else "note"
    sentence = f"largest gradient norm {plain(largest)} = {largest / median:.1f} x the median {plain(median)}"
    sentence += f", at update {at}; {count(int(high.sum()), 'spike')} of {len(high)} updates"
    drift = run.get("kl/old_new_k3")
    if drift is not None:
        sentence += f"; KL to the old policy at most {plain(float(drift.values.max()))} nats per token"
    return Verdict("stability", level, word, sentence, "#overview?chart=optim/gradient_spike")


def _spikes(run: Run, norms: Series) -> np.ndarray:
    """Return gradient norms over their median, as measured, else over that of the 64 above 0 before; 1 at the start."""
    measured = run.get("optim/gradient_spike")
    if measured is not None:
        return measured.values
    spikes = np.ones(len(norms))
    before: list[float] = []
    for i, norm in enumerate(norms.values.tolist()):
        if len(before) >= EARLIER:
            spikes[i] = norm / float(np.median(before[-HISTORY:]))
        if norm > 0:  # an update with nothing to learn says nothing about what is usual
            before.append(norm)
    return spikes


def _clipping(run: Run) -> Verdict | None:
    series = run.get("clip/tokens")
    if series is None:
        return None
    counted = later(run, "clip/tokens")
    if counted is None:
        mean = float(series.values.mean())
        sentence = f"{100 * mean:.3g}% of response tokens clipped: one update per iteration meets ratios of 1"
        return Verdict("clipping", "fine", "nothing to judge", sentence)
    mean = float(counted.values.mean())
    band = band_of(run, "clip/tokens")
    if run.setting("model", "objective", "init_args") is not None and run.clip.width is None and mean == 0:
        return Verdict("clipping", "fine", "nothing to judge", "the objective has no clip range")
    share = f"{100 * mean:.3g}% of response tokens clipped after the first mini-batch of an iteration"
    usual = f"{band.words} is usual with this clip range" if band is not None else ""
    link = "#rollouts?sort=log_s&clipped=1"
    if healthy(run, "clip/tokens"):
        return Verdict("clipping", "fine", "usual", f"{share}: {usual}", link)
    if mean == 0 and not any(tag in run.scalars for tag in BOUNDS):
        sentence = "no bound of the objective takes a gradient away"
        return Verdict("clipping", "fine", "nothing to judge", sentence)
    if mean == 0:
        return Verdict("clipping", "look", "never", f"{share}: the range never acts; its scale may be another's", link)
    sentence = f"{share}: {usual}; the steps are too large, or the range has another objective's scale"
    return Verdict("clipping", "look", "heavy", sentence, link)


def _sampler(run: Run) -> Verdict | None:
    """Return the verdict on the sampler: that it is the policy, and that its log-probabilities are exact."""
    gap = value_of(run, "noise/sampler_logprob_gap")
    sequences = value_of(run, "noise/sampler_sequence_gap")
    if gap is None and sequences is None:
        return None
    link = "#overview?chart=noise/sampler_logprob_gap"
    sentence = "" if gap is None else f"its log-probabilities differ from the trainer's by {plain(gap)} nats per token"
    if gap is not None and healthy(run, "noise/sampler_logprob_gap") is False:
        shift = end(run, "noise/kl_sampler_old_k1")
        one_sided = shift is not None and abs(shift) > ONE_SIDED * gap
        way = (
            "always in the same direction, as a wrong temperature or scaling does"
            if one_sided
            else "in both directions, as an engine's own kernels, stale weights or dropout do"
        )
        return Verdict("sampler", "bad" if one_sided else "look", "not the policy", f"{sentence}, {way}", link)
    if run.sequence_level and healthy(run, "noise/sampler_sequence_gap") is False:
        text = f"{plain(sequences)} nats per token over a sequence, more than a tenth of the clip range"
        more = f"{sentence}, and by {text}" if sentence else f"its log-probabilities differ by {text}"
        return Verdict("sampler", "note", "recomputed", f"{more}: old log-probabilities come from the trainer", link)
    return Verdict("sampler", "fine", "the policy", sentence or "its sequences have the trainer's ratios", link)


def _staleness(run: Run) -> Verdict | None:
    age = end(run, "staleness/mean_age")
    place = run.get("data/mini_batch")
    if age is None or place is None or age <= place.values.max() + 1:
        return None
    sentence = f"tokens are {plain(age)} updates old on average, more than one iteration has"
    return Verdict("staleness", "look", "stale", sentence, "#rollouts?sort=age")


def _faults(run: Run) -> Verdict | None:
    words = {"reward/missing": "have no reward", "reward/timeouts": "run into the deadline of a reward"}
    shares = {tag: end(run, tag) for tag in words if healthy(run, tag) is False}
    if not shares:
        return None
    tag = max(shares, key=lambda name: shares[name] or 0.0)
    sentence = f"{100 * (shares[tag] or 0.0):.0f} % of the last responses {words[tag]}"
    return Verdict("rewards", "look", "fail", sentence, f"#overview?chart={tag}")


def _histories(run: Run) -> Verdict | None:
    """Return the verdict on agents whose client changes the conversation that it sends back."""
    changed = {"answer": "what the policy said", "system": "the system message", "input": "earlier messages"}
    rates = {name: rate for name in changed if (rate := end(run, f"agents/forks/{name}")) is not None}
    bad = {name: rate for name, rate in rates.items() if healthy(run, f"agents/forks/{name}") is False}
    if not bad:
        return None
    name = max(bad, key=lambda key: bad[key])
    sentence = (
        f"{plain(bad[name])} times per rollout the client, or its chat template, changed {changed[name]} before "
        "sending it back; such a history no longer begins with the sampled tokens, and is trained as another row"
    )
    return Verdict("client", "bad", "rewrites the conversation", sentence, f"#overview?chart=agents/forks/{name}")


def _others(run: Run) -> Verdict | None:
    """Return one verdict on all other metrics that are outside of their bands at the end."""
    outside = [tag for tag in sorted(run.scalars) if tag not in JUDGED and healthy(run, tag) is False]
    outside = [tag for tag in outside if not tag.startswith("agents/forks/")]
    if not outside:
        return None
    values = [f"{tag} {plain(value_of(run, tag))} ({band.words})" for tag in outside if (band := band_of(run, tag))]
    more = f" and {len(values) - 4} more" if len(values) > 4 else ""
    link = f"#overview?chart={outside[0]}"
    return Verdict("other numbers", "note", "outside of their bands", ", ".join(values[:4]) + more, link)
