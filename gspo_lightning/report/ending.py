"""Values that a run is judged by: over its last fifth, or over mini-batches after the first of an iteration."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gspo_lightning.core.metric_table.health import Band
from gspo_lightning.core.metric_table.table import lookup
from gspo_lightning.report.collapse.watch import History, reward_share
from gspo_lightning.report.run import Run, Series

LAST = 0.2
"""Share of the iterations at the end, at least one: single iterations of 32 prompts wobble by a tenth."""


def end(run: Run, tag: str) -> float | None:
    """Return the mean of a metric over the last fifth of the run; None if it was not logged."""
    series = run.get(tag)
    return None if series is None else float(last_values(run, series).mean())


def last_values(run: Run, series: Series) -> NDArray[np.float64]:
    """Return the values of the last iterations (of the last updates, if iterations were not logged)."""
    of_value = iterations(run, series)
    logged = np.unique(of_value[np.isfinite(of_value)])
    if not len(logged):
        return series.values[-max(1, round(LAST * len(series))) :]
    first = logged[-max(1, round(LAST * len(logged)))]
    return series.values[of_value >= first]


def iterations(run: Run, series: Series) -> NDArray[np.float64]:
    """Return the iteration of each value of a series [K], NaN where it was not logged."""
    return at_steps(run, "data/iteration", series)


def at_steps(run: Run, tag: str, series: Series) -> NDArray[np.float64]:
    """Return a metric's values [K] at the updates of a series, NaN where it was not logged."""
    logged = run.get(tag)
    by_step = {} if logged is None else dict(zip(logged.steps.tolist(), logged.values.tolist(), strict=True))
    return np.array([by_step.get(step, np.nan) for step in series.steps.tolist()])


def later(run: Run, tag: str) -> Series | None:
    """Return the values of mini-batches after the first of their iteration; None if the run has none.

    The first mini-batch meets the policy that its ratios are taken to: its clip fraction is 0 whatever the run is like.
    With one mini-batch per iteration, or without a record of their places, nothing can be said.
    """
    series = run.get(tag)
    if series is None:
        return None
    if run.get("data/mini_batch") is not None:
        keep = at_steps(run, "data/mini_batch", series) > 0  # NaN is not
    else:
        number = iterations(run, series)
        keep = np.concatenate([[False], number[1:] == number[:-1]])
    return Series(series.steps[keep], series.values[keep]) if keep.any() else None


def by_iteration(run: Run, tag: str) -> tuple[NDArray[Any], ...] | None:
    """Return last steps, means, lowest and highest values of the iterations [I], None if they vary within none.

    What is judged from the second mini-batch of an iteration on is taken from there on.
    """
    spec = lookup(tag)
    series = later(run, tag) if spec is not None and spec.health.later else run.get(tag)
    if series is None or tag.startswith("val/"):
        return None
    number = iterations(run, series)
    logged = np.isfinite(number)
    series = Series(series.steps[logged], series.values[logged])
    number = number[logged]
    if not len(series):
        return None
    starts = np.flatnonzero(np.concatenate([[True], number[1:] != number[:-1]]))
    low = np.minimum.reduceat(series.values, starts)
    high = np.maximum.reduceat(series.values, starts)
    if len(starts) < 2 or (low == high).all():
        return None
    counts = np.diff([*starts, len(series)])
    means = np.add.reduceat(series.values, starts) / counts
    return series.steps[starts + counts - 1], means, low, high


def value_of(run: Run, tag: str) -> float | None:
    """Return the number that is compared with the healthy band of a metric; None if the run does not tell it."""
    spec = lookup(tag)
    if spec is not None and spec.health.later:
        counted = later(run, tag)
        return None if counted is None else float(counted.values.mean())
    return end(run, tag)


def band_of(run: Run, tag: str) -> Band | None:
    """Return the healthy band of a metric for a run with this objective; None if it has none."""
    spec = lookup(tag)
    return None if spec is None else spec.health.band(run.clip)


def healthy(run: Run, tag: str) -> bool | None:
    """Judge a metric: True if it is within its band; None if it has no band or no value.

    >>> from pathlib import Path
    >>> from gspo_lightning.report.run import Series
    >>> run = Run(Path("."), {"reward/dead_groups": Series(np.arange(4), np.array([0.1, 0.2, 0.5, 0.9]))})
    >>> end(run, "reward/dead_groups"), healthy(run, "reward/dead_groups")
    (0.9, False)
    """
    value = value_of(run, tag)
    band = band_of(run, tag)
    return None if value is None or band is None else band.holds(value)


def start_band(tag: str) -> Band | None:
    """Return the range of a metric in multiples of its start; None if it has none."""
    spec = lookup(tag)
    return None if spec is None else spec.health.of_start


def earned(run: Run) -> float:
    """Return the place of the last mean reward between the lowest (0) and the highest (1) reward of the run.

    It is the number by which alarms tell a solved task from a stuck one.
    """
    mean = run.get("reward/mean")
    if mean is None:
        return 0.0
    history = History()
    tags = {tag: series for tag in ("reward/mean", "reward/min", "reward/max") if (series := run.get(tag)) is not None}
    by_step = {tag: dict(zip(s.steps.tolist(), s.values.tolist(), strict=True)) for tag, s in tags.items()}
    for step in mean.steps.tolist():
        history.see_rewards({tag: values[step] for tag, values in by_step.items() if step in values})
    return reward_share({"reward/mean": float(last_values(run, mean).mean())}, history)


def rose(run: Run, share: float = 0.1) -> float | None:
    """Return the rise of the mean reward from the first to the last fifth, as a share of the range; None if smaller."""
    mean = run.get("reward/mean")
    if mean is None or len(mean) < 2:
        return None
    low, high = reward_range(run, mean)
    first = mean.values[: max(1, round(LAST * len(mean)))]
    rise = float(last_values(run, mean).mean() - first.mean()) / max(high - low, 1e-9)
    return rise if rise >= share else None


def reward_range(run: Run, reward: Series) -> tuple[float, float]:
    """Return the lowest and highest reward of a response so far, else of an iteration."""
    lows = run.get("reward/min") or reward
    highs = run.get("reward/max") or reward
    lowest = float(lows.values.min())
    return lowest, max(float(highs.values.max()), lowest)
