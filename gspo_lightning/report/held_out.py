"""Change of a run's held-out metric, with its 95 % interval: paired by prompt where the scores of prompts are known."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gspo_lightning.core.metric_table.spec import threshold
from gspo_lightning.core.tolerance import SINGLE, equal
from gspo_lightning.report.run import Run, Series, number
from gspo_lightning.report.statistics import paired
from gspo_lightning.report.statistics.intervals import NORMAL

PAIRED = "paired by prompt"
UNPAIRED = "from standard errors"
LIMIT = ("data", "evaluation", "limit")
"""Setting of the number of held-out prompts."""


@dataclass(frozen=True, slots=True)
class Change:
    """A difference with the ends of its 95 % interval, None where none can be given.

    ``n`` is the number of prompts, None if unknown; ``how`` names the interval.
    """

    value: float
    low: float | None
    high: float | None
    n: int | None
    how: str

    @property
    def words(self) -> str:
        """The difference, its interval and n.

        >>> Change(0.25, 0.125, 0.375, 512, PAIRED).words
        '+0.25 [+0.12, +0.38], n = 512'
        """
        if self.low is None or self.high is None:
            return f"{self.value:+.2f}, no interval recorded"
        ends = f"{self.value:+.2f} [{self.low:+.2f}, {self.high:+.2f}]"
        if self.n is None:
            return f"{ends}, {self.how}"
        return f"{ends}, n = {self.n}" + ("" if self.how == PAIRED else f" {self.how}")

    @property
    def sign(self) -> int | None:
        """1 or -1 if the interval excludes 0 on that side, 0 if it does not; None without an interval."""
        if self.low is None or self.high is None:
            return None
        return 1 if self.low > 0 else -1 if self.high < 0 else 0


def held_out_change(run: Run) -> Change | None:
    """Return the change of the headline metric from the first to the last evaluation; None without two of them.

    It is paired by prompt if the scores of these two evaluations are recorded: a resumed run may lack the first ones,
    and a killed one the last.
    """
    before, after = run.held_out()
    if before is None or after is None:
        return None
    series = run.get(run.held_out_tag)
    evaluated = [row["update"] for row in run.scores] if series is None else series.steps.tolist()  # without a logger
    if len(evaluated) > 1:
        first = scores(run, evaluated[0])
        last = scores(run, evaluated[-1])
        change = _paired(first, last)
        # a summary of a run that was resumed into a new folder begins with an evaluation that is not in the folder
        if change is not None and (series is not None or (_has_mean(first, before) and _has_mean(last, after))):
            return change
    return _unpaired(run, before, after)


def standard_error(run: Run, update: int) -> float | None:
    """Return the standard error of the headline metric in the evaluation after an update; None if it is not known."""
    values = list(scores(run, update).values())
    if len(values) > 1:
        return float(np.std(values) / math.sqrt(len(values)))
    series = run.get("val/accuracy_standard_error") if run.shown_by == "accuracy" else None
    if series is None or update not in series.steps:
        return None
    return float(series.values[series.steps == update][-1])


def prompts(run: Run) -> int | None:
    """Return the number of held-out prompts of the last evaluation whose score is known; None if not recorded."""
    return len(_scores_of_row(run, run.scores[-1])) or None if run.scores else None


def fall(run: Run) -> tuple[int, float, float] | None:
    """Return (update, best, last) if the last evaluation is below the best one by the alarm's number of errors.

    It is the rule of the alarm ``held_out_fall``, for the last evaluation, and for a mean reward, too. The error is
    that of the paired difference, if the scores of both evaluations are recorded.
    """
    series = run.get(run.held_out_tag)
    if series is None or len(series) < 2:
        return None
    place = _best(series)
    at = int(series.steps[place])
    best = float(series.values[place])
    last = float(series.values[-1])
    first = scores(run, at)
    second = scores(run, int(series.steps[-1]))
    if first.keys() & second.keys():
        fell = paired.fall(first, second, threshold("held_out_fall.paired_errors"))
        return None if fell is None else (at, best, last)
    estimates = [_of_one(run, series, i) for i in (place, -1)]
    measured = [estimate for estimate in estimates if estimate is not None]
    if len(measured) < 2:
        return None
    (high, error), (low, other) = measured
    return (at, best, last) if high - low > threshold("held_out_fall.errors") * math.hypot(error, other) else None


def rise_to_the_best(run: Run) -> Change | None:
    """Return the change of the headline metric from the first to the best evaluation; None without two of them."""
    series = run.get(run.held_out_tag)
    if series is None or (place := _best(series)) == 0:
        return None
    first, best = (scores(run, int(series.steps[i])) for i in (0, place))
    change = _paired(first, best)
    if change is not None:
        return change
    return _of_independent(run, series, 0, place)


def _best(series: Series) -> int:
    """Return the place of the best evaluation, the later one of equals."""
    return int(np.flatnonzero(series.values == series.values.max())[-1])


def _of_one(run: Run, series: Series, place: int) -> tuple[float, float] | None:
    """Return value and standard error of an evaluation; if all or no answers were right, those of four answers more.

    An error of 0 would make any difference one that chance does not explain. Two right and two wrong answers more give
    Agresti and Caffo's interval (2000), or nearly. Other evaluations tell the number of prompts: their error is
    sqrt(p (1 - p) / n).
    """
    value = float(series.values[place])
    error = standard_error(run, int(series.steps[place]))
    if error is None:
        return None
    if error > 0 or run.shown_by != "accuracy":
        return value, error
    others = [(float(p), standard_error(run, int(step))) for step, p in zip(series.steps, series.values, strict=True)]
    counts = [p * (1 - p) / e**2 for p, e in others if e and 0 < p < 1] or [number(run.setting(*LIMIT)) or 0.0]
    n = float(np.median(counts))
    if n < 1:
        return value, error
    p = (value * n + 2) / (n + 4)
    return p, math.sqrt(p * (1 - p) / (n + 4))


def reward_change(run: Run) -> Change | None:
    """Return the change of the mean training reward from the first to the last iteration.

    None if it was not logged, or if there is only one iteration. The prompts of the two iterations differ: the interval
    is that of two independent means over prompts.
    """
    reward = run.first_and_last("reward/mean")
    spread = run.first_and_last("reward/std")
    if reward is None or run.iterations == 1:
        return None
    prompts = number(run.setting("data", "prompts_per_rollout"))
    change = reward[1] - reward[0]
    if spread is None or not prompts or not math.isfinite(sum(spread) + change):
        return Change(change, None, None, None, "unknown")
    half = NORMAL * math.hypot(*spread) / math.sqrt(prompts)
    return Change(change, change - half, change + half, int(prompts), "prompts an iteration")


def reward_interval(run: Run) -> str:
    """Return interval and n of the first iteration's mean reward, as words; empty if they are not known."""
    reward = run.first_and_last("reward/mean")
    spread = run.first_and_last("reward/std")
    prompts = number(run.setting("data", "prompts_per_rollout"))
    if reward is None or spread is None or not prompts or not math.isfinite(reward[0] + spread[0]):
        return ""
    half = NORMAL * spread[0] / math.sqrt(prompts)
    return f" [{reward[0] - half:.2f}, {reward[0] + half:.2f}], n = {prompts:.0f} prompts,"


def scores(run: Run, update: int) -> dict[int, float]:
    """Return prompt -> score of the evaluation after an update; empty if it was not recorded."""
    for row in run.scores:
        if row["update"] == update and (of_row := _scores_of_row(run, row)):
            return of_row
    return {}


def _scores_of_row(run: Run, row: Mapping[str, Any]) -> dict[int, float]:
    """Return prompt -> score of an evaluation, for the headline metric; empty if the row is not whole."""
    ids = row.get("id")
    column = row.get("accuracy" if run.shown_by == "accuracy" else "reward")
    if not isinstance(ids, list) or not isinstance(column, list) or len(ids) != len(column):
        return {}
    by_prompt = {key: number(score) for key, score in zip(ids, column, strict=True) if isinstance(key, int)}
    return {key: score for key, score in by_prompt.items() if score is not None}


def _paired(first: Mapping[int, float], last: Mapping[int, float]) -> Change | None:
    both = sorted(first.keys() & last.keys())
    if not both:
        return None
    return _of_pairs(tuple(first[key] for key in both), tuple(last[key] for key in both))


@functools.lru_cache(maxsize=64)  # the page asks again whenever a file of the run has changed
def _of_pairs(first: tuple[float, ...], last: tuple[float, ...]) -> Change:
    low = min(*first, *last, 0.0)
    scale = max(max(*first, *last) - low, 1.0)  # the test is for values in [0, 1]
    scaled = paired.difference(_scaled(first, low, scale), _scaled(last, low, scale))
    ends = [None if end is None else end * scale for end in (scaled.low, scaled.high)]
    return Change(scaled.value * scale, ends[0], ends[1], scaled.n, PAIRED)


def _has_mean(of_prompts: Mapping[int, float], value: float) -> bool:
    return equal(float(np.mean(list(of_prompts.values()))), value, max(abs(value), 1.0), SINGLE)


def _scaled(values: Sequence[float], low: float, scale: float) -> list[float]:
    return [(value - low) / scale for value in values]


def _unpaired(run: Run, before: float, after: float) -> Change:
    """Return the change with the interval of independent evaluations, which is wider than that of paired ones."""
    series = run.get(run.held_out_tag)
    if series is None or len(series) < 2:
        return Change(after - before, None, None, None, "unknown")
    return _of_independent(run, series, 0, -1)


def _of_independent(run: Run, series: Series, first: int, last: int) -> Change:
    change = float(series.values[last] - series.values[first])
    estimates = [_of_one(run, series, i) for i in (first, last)]
    measured = [estimate for estimate in estimates if estimate is not None]
    if len(measured) < 2:
        return Change(change, None, None, None, "unknown")
    (start, error), (end, other) = measured
    half = NORMAL * math.hypot(error, other)
    return Change(change, end - start - half, end - start + half, None, UNPAIRED)
