"""Compute 95 % intervals for a share of right answers: over problems like these, and over new answers to these.

The unit is the problem: answers to one problem are alike, so 30 problems with 32 answers each are 30 observations of
a model's ability and not 960. Both intervals are Wilson's, for the number of independent answers that would have the
observed variance (the *effective* number, as for surveys drawn in clusters). They lie in [0, 1], and all-right answers
still have a lower end below 1. The variance between problems has a minimum, because kinds of problems that were not
drawn contribute nothing to it. The coverage of both is simulated in ``tests/statistics``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gspo_lightning.statistics.student import NORMAL, quantile

__all__ = ["Estimate", "of_new_problems", "of_these_problems"]


@dataclass(frozen=True, slots=True)
class Estimate:
    """Mean over ``n`` problems with the ends of a 95 % interval, None if one cannot be given."""

    value: float
    low: float | None
    high: float | None
    n: int


def of_new_problems(values: Sequence[float], weights: Sequence[float] | None = None) -> Estimate:
    """Return the mean, and an interval for other problems of the same kind.

    The variance between problems includes the noise of sampling, once. 30 problems that are nearly always solved do
    not show that all are: a kind that is never solved, one problem in twenty, stays unseen with a probability of .21.
    Each end therefore takes at least the variance that :func:`_unseen` gives to its side, but never more than as many
    problems of one answer each would have.

    Args:
        values: one per problem, in [0, 1]: the share of its answers that are right, its pass@k, its share of cells.
        weights: weight of each problem (its number of cells); None weighs all alike.

    Returns:
        The weighted mean. With one problem there are no ends.

    Raises:
        ValueError: no value, a value outside [0, 1], or weights that are not positive.

    >>> of_new_problems([0.0, 1.0, 1.0, 1.0])  # doctest: +ELLIPSIS
    Estimate(value=0.75, low=0.130..., high=0.983..., n=4)
    >>> found = of_new_problems([1.0] * 29 + [63 / 64])  # one wrong answer of 1,920
    >>> round(found.low, 2), round(found.high, 4)
    (0.88, 0.9999)
    """
    x, w = _checked(values, weights)
    n, mean = len(x), min(1.0, float(np.average(x, weights=w)))
    if n < 2:
        return Estimate(mean, None, None, n)
    share = w / w.sum()
    # effective number of equally weighted problems (Kish, Survey Sampling, 1965, 11.7)
    problems = 1 / float((share**2).sum())
    seen = float(np.sum((share * (x - mean)) ** 2 / (1 - share)))  # unbiased for equal variances (HC2)
    t = quantile(max(1, math.floor(problems + 1e-9) - 1))
    low, high = (_effective(mean, seen, _unseen(m, problems), problems) for m in (mean, 1 - mean))
    return Estimate(mean, _wilson(mean, low, t)[0], _wilson(mean, high, t)[1], n)


def _unseen(mean: float, problems: float) -> float:
    """Return the variance of a mean, on the side towards 0, from kinds of problems that were not drawn.

    The Bayesian bootstrap (Rubin 1981) gives every problem a random weight. Here one more problem has such a weight, of
    second moment 2 / ((n + 1) (n + 2)), and a chance y anywhere from 0 to 1: the mean of (mean - y)^2 over y below the
    mean is mean^3 / 3, and a variance counts both sides.
    """
    return 4 / 3 * mean**3 / ((problems + 1) * (problems + 2))


def _effective(mean: float, seen: float, unseen: float, problems: float) -> float:
    """Return the number of independent answers whose mean has the larger variance.

    ``unseen`` is limited to the variance of one answer per problem.
    """
    single = mean * (1 - mean)
    return single / max(seen, min(unseen, single / problems)) if 0 < mean < 1 else problems


def of_these_problems(right: Sequence[Sequence[float]]) -> Estimate:
    """Return the mean share of right answers over problems, and an interval for new answers to them.

    Args:
        right: for each problem the values of its answers, in [0, 1]; their number may differ.

    Returns:
        The mean; no ends if a problem has a single answer, which does not predict the next one.

    Raises:
        ValueError: no problem, a problem without answers, or a value outside [0, 1].
    """
    if not right or not all(len(row) for row in right):
        raise ValueError("every problem needs an answer")
    rows = [_checked(row, None)[0] for row in right]
    n, counts = len(rows), np.array([len(row) for row in rows], dtype=np.float64)
    means = np.array([row.mean() for row in rows])
    mean = float(means.mean())
    if counts.min() < 2:
        return Estimate(mean, None, None, n)
    seen = float(np.sum([row.var(ddof=1) / len(row) for row in rows]))
    # k right answers of k do not prove a probability of 1: take the expected variance under Jeffreys' prior
    a, b = means * counts + 0.5, (1 - means) * counts + 0.5
    expected = float(np.sum(a * b / ((a + b) * (a + b + 1)) / counts))
    variance = max(seen, expected) / n**2
    effective = mean * (1 - mean) / variance if 0 < mean < 1 else float(counts.sum())
    return Estimate(mean, *_wilson(mean, effective, NORMAL), n)


def _wilson(mean: float, effective: float, z: float) -> tuple[float, float]:
    """Return Wilson's interval for ``effective`` independent answers with this mean."""
    shrunk = 1 + z * z / effective
    centre = (mean + z * z / (2 * effective)) / shrunk
    half = z / shrunk * math.sqrt(mean * (1 - mean) / effective + z * z / (4 * effective**2))
    return max(0.0, centre - half), min(1.0, centre + half)


def _checked(values: Sequence[float], weights: Sequence[float] | None) -> tuple[np.ndarray, np.ndarray]:
    x = np.asarray(values, dtype=np.float64)
    w = np.ones_like(x) if weights is None else np.asarray(weights, dtype=np.float64)
    if x.ndim != 1 or len(x) == 0 or x.shape != w.shape:
        raise ValueError(f"one value per problem is needed, got shapes {x.shape} and {w.shape}")
    if not ((x >= 0) & (x <= 1)).all():  # NaN, too
        raise ValueError("values must lie in [0, 1]")
    if not (w > 0).all():
        raise ValueError("weights must be positive")
    return x, w
