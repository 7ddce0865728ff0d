"""Measures compared between variants, and the bootstrap test for claiming a difference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from gspo_lightning.report.run import Run

SEEDS_FOR_A_CLAIM = 8
"""Minimum seeds for a claim. With fewer pairs a bootstrap interval is far too narrow: with 3, one of 27 resamples
decides the 95% bound."""
RESAMPLES = 10_000


@dataclass(frozen=True, slots=True)
class Measure:
    """Measure of a run: a name and a function that returns one number, or None."""

    name: str
    of: Callable[[Run], float | None]


@dataclass(frozen=True, slots=True)
class Difference:
    """Second variant minus first in a measure: ``mean`` over paired seeds, bootstrap ``low`` and ``high`` (95%)."""

    mean: float
    low: float
    high: float
    seeds: int

    @property
    def words(self) -> str:
        """``higher``, ``lower``, or the reason for no claim."""
        if self.seeds < SEEDS_FOR_A_CLAIM:
            return f"not separated ({self.seeds} of the {SEEDS_FOR_A_CLAIM} seeds that a claim needs)"
        return "higher" if self.low > 0 else "lower" if self.high < 0 else "not separated"


def _accuracy(run: Run) -> float | None:
    return run.accuracy()[1]


def _mean(tag: str) -> Callable[[Run], float | None]:
    def of(run: Run) -> float | None:
        series = run.get(tag)
        return None if series is None else float(series.values.mean())

    return of


def _largest(tag: str) -> Callable[[Run], float | None]:
    def of(run: Run) -> float | None:
        series = run.get(tag)
        return None if series is None else float(series.values.max())

    return of


def _last_iteration(tag: str) -> Callable[[Run], float | None]:
    def of(run: Run) -> float | None:
        means = run.first_and_last(tag)
        if means is None:
            return None
        _, last = means
        return last if np.isfinite(last) else None

    return of


def after_an_update(tag: str) -> Callable[[Run], float | None]:
    """Return a measure: the mean over updates except each iteration's first, where the policy equals the old one."""

    def of(run: Run) -> float | None:
        series = run.get(tag)
        mini_batch = run.get("data/mini_batch")
        if series is None or mini_batch is None:
            return None
        first_steps = mini_batch.steps[mini_batch.values == 0]
        later = series.values[~np.isin(series.steps, first_steps)]
        return float(np.mean(later.tolist())) if len(later) else None

    return of


MEASURES = (
    Measure("held-out accuracy after training", _accuracy),
    Measure("training reward, mean over the run", _mean("reward/mean")),
    Measure("training reward, last iteration", _last_iteration("reward/mean")),
    Measure("clipped tokens, mean", _mean("clip/tokens")),
    Measure("largest gradient norm", _largest("optim/gradient_norm")),
    Measure("std of log s_i, mean", _mean("ratio/log_sequence_std")),
    Measure("entropy, last iteration", _last_iteration("policy/entropy")),
    Measure("response length, last iteration", _last_iteration("response/length")),
    Measure("routed choices that differ from the old policy's, mean", after_an_update("moe/changed_choices")),
)


def paired_difference(first: Sequence[float], second: Sequence[float]) -> Difference:
    """Return the mean of ``second - first`` over seeds [K] and its percentile bootstrap interval over seeds (95%).

    The resampling seed is fixed: the same runs give the same interval.

    >>> paired_difference([0.0] * 8, [1.0] * 8).words
    'higher'
    >>> paired_difference([0.0, 0.0], [1.0, 1.0]).words
    'not separated (2 of the 8 seeds that a claim needs)'
    """
    differences = np.asarray(second, dtype=np.float64) - np.asarray(first, dtype=np.float64)
    seeds = len(differences)
    resamples = np.random.default_rng(0).integers(seeds, size=(RESAMPLES, seeds))
    low, high = np.percentile(differences[resamples].mean(axis=1), [2.5, 97.5])
    return Difference(float(differences.mean()), float(low), float(high), seeds)
