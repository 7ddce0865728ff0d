"""Judge what a run learned: held-out change, a gamed reward, dead groups, lengths, entropy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from gspo_lightning.core.metric_table.spec import threshold
from gspo_lightning.report.collapse.signatures import TAUGHT
from gspo_lightning.report.ending import earned, end, healthy, iterations, reward_range, rose, start_band
from gspo_lightning.report.held_out import fall, held_out_change, reward_change, rise_to_the_best
from gspo_lightning.report.run import Run, Series
from gspo_lightning.report.verdict import Level, Verdict
from gspo_lightning.report.words import count, from_to, known, plain, training_reward, two

USUAL = 0.1
"""Relative change of length or entropy that is not called one: iterations differ by as much."""
BEHIND = 0.5
"""Share of the training reward's rise below which the upper end of the held-out rise is far behind."""

ENOUGH = 10
"""Iterations below which a rise of the training reward is not compared with held-out answers."""


def judge_learning(run: Run) -> Verdict | None:
    """Return whether the paired change of the held-out metric excludes 0, and whether it fell from its best."""
    change = held_out_change(run)
    before, after = run.held_out()
    if change is None:
        if run.get("reward/mean") is None:
            return None
        sentence = f"no two evaluations to compare in {count(run.updates, 'update')}; {training_reward(run)}"
        return Verdict("learning", "note", "not evaluated", sentence)
    series = run.get(run.held_out_tag)
    start = "" if series is None or series.steps[0] == 0 else f" (first evaluated after {series.steps[0]} updates)"
    sentence = (
        f"held-out {run.shown_by} {two(before)} → {two(after)} in {count(run.updates, 'update')}{start}: {change.words}"
    )
    words: dict[int | None, tuple[Level, str]] = {
        1: ("fine", "learned"), -1: ("look", "unlearned"), 0: ("note", "no change shown"), None: ("note", "not judged"),
    }  # fmt: skip
    level, word = words[change.sign]
    if (fallen := fall(run)) is not None:
        peak, best, _ = fallen
        risen = rise_to_the_best(run)
        learned = change.sign == 1 or (risen is not None and risen.sign == 1)
        level = "note" if "held_out_fall" in run.ignored else "bad"
        word = "learned, then fell back" if learned else "unlearned" if change.sign == -1 else "fell back"
        sentence += f"; its best was {best:.2f} after {peak}"
    return Verdict("learning", level, word, sentence, "#answers")


def judge_gamed(run: Run) -> Verdict | None:
    """Return the verdict on a training reward that rises while held-out answers fall, or stay far behind.

    Both are compared from the first to the last evaluation: the reward of a run that goes on has risen since.
    """
    series = run.get(run.held_out_tag)
    reward = run.get("reward/mean")
    change = held_out_change(run)
    if series is None or reward is None or change is None or change.high is None:
        return None
    evaluated = _between(run, int(series.steps[0]), int(series.steps[-1]))
    rise = rose(evaluated)
    pure = reward_change(evaluated)
    if rise is None or pure is None or (pure.low is not None and pure.low <= 0) or _iterations(evaluated) < ENOUGH:
        return None  # means of few prompts differ by as much
    before = float(series.values[0])
    after = float(series.values[-1])
    low, high = reward_range(run, reward)
    scale = 1.0 if run.shown_by == "accuracy" else max(high - low, 1e-9)
    if (fallen := fall(run)) is not None:
        behind = f"the held-out {run.shown_by} fell from {plain(fallen[1])} to {plain(fallen[2])}"
    elif change.high / scale < BEHIND * rise:
        behind = f"the held-out {run.shown_by} only went from {plain(before)} to {plain(after)}"
    else:
        return None
    sentence = f"the training reward rose by {100 * rise:.0f} % of its range; {behind}.{_most_of_the_rise(evaluated)}"
    return Verdict("gamed reward", "bad", "held-out answers do not rise with it", sentence, "#rollouts?sort=reward")


def _iterations(run: Run) -> int:
    """Return the number of iterations (of updates, if iterations were not logged) whose reward is known."""
    reward = run.get("reward/mean")
    if reward is None:
        return 0
    number = iterations(run, reward)
    return len(np.unique(number[np.isfinite(number)])) or len(reward)


def _between(run: Run, first: int, last: int) -> Run:
    """Return the run with the rewards of the updates after ``first``, up to ``last``."""
    scalars = dict(run.scalars)
    for tag, series in run.scalars.items():
        if tag in ("reward/mean", "reward/std") or tag.startswith("reward/parts/"):
            keep = (series.steps > first) & (series.steps <= last)
            scalars[tag] = Series(series.steps[keep], series.values[keep])
    return replace(run, scalars=scalars)


def _most_of_the_rise(run: Run) -> str:
    tags = [tag for tag in run.scalars if tag.startswith("reward/parts/")]
    rises = {tag: (end(run, tag) or 0.0) - float(run.scalars[tag].values[0]) for tag in tags if len(run.scalars[tag])}
    if len(rises) < 2:
        return ""
    steepest = max(rises, key=lambda tag: rises[tag])
    return f" Most of the rise is {steepest.rsplit('/', 1)[-1]}."


def _unchanged(run: Run) -> str:
    return "of one iteration" if run.iterations == 1 else "as before"


def _tenths(value: float | None) -> str:
    return "?" if value is None else f"{value:.1f}"


def _percent(value: float | None) -> str:
    return "?" if value is None else f"{100 * value:.0f}%"


def _to_the_last_fifth(run: Run, first: float, last: float, style: Callable[[float | None], str]) -> str:
    """Format the first iteration and the last fifth; one number if a run has a single iteration."""
    return from_to(run, (first, last), style) + ("" if run.iterations == 1 else " (last fifth)")


def judge_dead_groups(run: Run) -> Verdict | None:
    """Return the verdict on groups without a difference; where the task is solved they are success."""
    last = end(run, "reward/dead_groups")
    pair = known(run, "reward/dead_groups")
    if last is None or pair is None:
        return None
    sentence = f"{_to_the_last_fifth(run, pair[0], last, _percent)} of groups have all rewards equal"
    link = "#rollouts?choice=any&sort=iteration"
    if healthy(run, "reward/dead_groups"):
        return Verdict("dead groups", "fine", "few", sentence, link)
    if earned(run) >= threshold("dead_group_flood.solved"):
        return Verdict("dead groups", "note", "solved", f"{sentence}: most prompts are solved; give harder ones", link)
    if TAUGHT in run.scalars:
        return Verdict("dead groups", "note", "many", f"{sentence}: the teacher teaches without rewards", link)
    why = "they teach nothing: use easier prompts, larger groups or a finer reward"
    return Verdict("dead groups", "look", "many", f"{sentence}: {why}", link)


def judge_length(run: Run) -> Verdict | None:
    """Return the verdict on lengths and on truncated responses."""
    pair = known(run, "response/length")
    cut = end(run, "response/truncated")
    if cut is None and (pair is None or pair[0] <= 0):
        return None
    word = "not logged"
    parts = []
    if pair is not None and pair[0] > 0:
        factor = pair[1] / pair[0]
        word = "longer" if factor > 1 + USUAL else "shorter" if factor < 1 - USUAL else _unchanged(run)
        parts.append(f"{from_to(run, pair, _tenths)} tokens per response")
    if cut is not None:
        parts.append(f"{100 * cut:.3g}% truncated in the last fifth")
    sentence = ", ".join(parts)
    link = "#rollouts?sort=length"
    if healthy(run, "response/truncated") is False:
        sentence += ": the limit decides what is paid; raise data.max_response_tokens"
        return Verdict("length", "look", f"{word}, often cut", sentence, link)
    return Verdict("length", "fine", word, sentence, link)


def judge_entropy(run: Run) -> Verdict | None:
    """Return the verdict on the entropy, which may fall while a skill is learned."""
    pair = known(run, "policy/entropy")
    last = end(run, "policy/entropy")
    if pair is None or last is None:
        return None
    sentence = f"{_to_the_last_fifth(run, pair[0], last, plain)} nats per token"
    link = "#overview?chart=policy/entropy"
    if healthy(run, "policy/entropy") is False:
        if earned(run) >= threshold("entropy_collapse.solved"):
            why = "the task is solved and the policy is sure"
            return Verdict("entropy", "note", "nearly none", f"{sentence}: {why}", link)
        if TAUGHT in run.scalars:
            return Verdict("entropy", "note", "nearly none", f"{sentence}: distillation asks for the teacher's", link)
        return Verdict("entropy", "look", "nearly none", f"{sentence}: little is left to explore", link)
    start = start_band("policy/entropy")
    reward = known(run, "reward/mean")
    flat = reward is not None and reward[1] <= reward[0] and TAUGHT not in run.scalars
    if start is not None and pair[0] > 0 and not start.holds(last / pair[0]) and flat:
        why = "while the reward does not rise: the policy is dissolving"
        return Verdict("entropy", "look", "rising", f"{sentence} {why}", link)
    relative = last / pair[0] - 1 if pair[0] > 0 else 0.0
    word = "rising" if relative > USUAL else "falling" if relative < -USUAL else _unchanged(run)
    return Verdict("entropy", "fine", word, sentence, link)
