"""Compute 95 % intervals for a share of right answers: over problems like these, and over new answers to these.

The unit is the problem: answers to one problem are alike, so 30 problems with 32 answers each are 30 observations of
a model's ability and not 960. Both intervals are Wilson's, for the number of independent answers that would have the
observed variance (the *effective* number, as for surveys drawn in clusters). They lie in [0, 1], and all-right answers
still have a lower end below 1. The variance between problems has a minimum, because kinds of problems that were not
drawn contribute nothing to it. The coverage of both is simulated in ``tests/report/statistics``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np

_PRIOR = 0.5
_TINY = 1e-300
NORMAL = NormalDist().inv_cdf(0.975)
"""The two-sided 95 % quantile of the normal distribution, 1.96."""
_LARGE = 200
"""Degrees of freedom from which two terms of the expansion about the normal quantile are exact to seven digits."""


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
    n = len(x)
    mean = float(np.clip(np.average(x, weights=w), x.min(), x.max()))  # rounding may leave the values' range
    if n < 2:
        return Estimate(mean, None, None, n)
    share = w / w.sum()
    # effective number of equally weighted problems (Kish, Survey Sampling, 1965, 11.7)
    problems = 1 / float((share**2).sum())
    observed = float(np.sum((share * (x - mean)) ** 2 / (1 - share)))  # unbiased for equal variances (HC2)
    t = quantile(max(1, math.floor(problems + 1e-9) - 1))
    low, _ = _wilson(mean, _effective(mean, observed, _unseen(mean, problems), problems), t)
    _, high = _wilson(mean, _effective(mean, observed, _unseen(1 - mean, problems), problems), t)
    return Estimate(mean, low, high, n)


def _unseen(mean: float, problems: float) -> float:
    """Return the variance of a mean, on the side towards 0, from kinds of problems that were not drawn.

    The Bayesian bootstrap (Rubin 1981) gives every problem a random weight. Here one more problem has such a weight, of
    second moment 2 / ((n + 1) (n + 2)), and a chance y anywhere from 0 to 1: the mean of (mean - y)^2 over y below the
    mean is mean^3 / 3, and a variance counts both sides.
    """
    return 4 / 3 * mean**3 / ((problems + 1) * (problems + 2))


def _effective(mean: float, observed: float, unseen: float, problems: float) -> float:
    """Return the number of independent answers whose mean has the larger variance.

    ``unseen`` is limited to the variance of one answer per problem.
    """
    single = mean * (1 - mean)
    return single / max(observed, min(unseen, single / problems)) if 0 < mean < 1 else problems


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
    n = len(rows)
    counts = np.array([len(row) for row in rows], dtype=np.float64)
    means = np.array([row.mean() for row in rows])
    mean = float(means.mean())
    if counts.min() < 2:
        return Estimate(mean, None, None, n)
    observed = float(np.sum([row.var(ddof=1) / len(row) for row in rows]))
    # k right answers of k do not prove a probability of 1: take the expected variance under Jeffreys' prior
    a = means * counts + 0.5
    b = (1 - means) * counts + 0.5
    expected = float(np.sum(a * b / ((a + b) * (a + b + 1)) / counts))
    variance = max(observed, expected) / n**2
    effective = mean * (1 - mean) / variance if 0 < mean < 1 else float(counts.sum())
    return Estimate(mean, *_wilson(mean, effective, NORMAL), n)


def _wilson(mean: float, effective: float, z: float) -> tuple[float, float]:
    """Return Wilson's interval for ``effective`` independent answers with this mean; its ends 0 and 1 are exact."""
    shrunk = 1 + z * z / effective
    centre = (mean + z * z / (2 * effective)) / shrunk
    half = z / shrunk * math.sqrt(mean * (1 - mean) / effective + z * z / (4 * effective**2))
    low = max(0.0, centre - half) if mean > 0 else 0.0
    high = min(1.0, centre + half) if mean < 1 else 1.0
    return low, high


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


def beta_interval(passes: int, trials: int) -> tuple[float, float]:
    """Return the middle 95 % of Beta(passes + 1/2, failures + 1/2); it reaches 0 for no pass, 1 for no failure.

    Brown, Cai & DasGupta (2001), "Interval estimation for a binomial proportion", section 4.

    >>> [round(end, 4) for end in beta_interval(3, 8)]
    [0.119, 0.7052]
    >>> [round(end, 4) for end in beta_interval(8, 8)]
    [0.7378, 1.0]

    Raises:
        ValueError: no trial, or more passes than trials.
    """
    if not 0 <= passes <= trials or not trials:
        raise ValueError(f"passes must lie in 0 to trials, of which there is one at least, got {passes} of {trials}")
    a = passes + _PRIOR
    b = trials - passes + _PRIOR
    low = 0.0 if passes == 0 else _quantile(0.025, a, b)
    high = 1.0 if passes == trials else _quantile(0.975, a, b)
    return low, high


def _quantile(share: float, a: float, b: float) -> float:
    """Invert the distribution function by bisection."""
    low = 0.0
    high = 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if _below(middle, a, b) < share:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _below(x: float, a: float, b: float) -> float:
    """Return the regularised incomplete beta function (its continued fraction, DLMF 8.17.22)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - _below(1 - x, b, a)
    front = math.exp(a * math.log(x) + b * math.log1p(-x) + math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b))
    return front * _fraction(x, a, b) / a


def _fraction(x: float, a: float, b: float) -> float:
    """Evaluate the continued fraction by Lentz's algorithm."""
    c = 1.0
    d = 1 / (1 - (a + b) * x / (a + 1) or _TINY)
    fraction = d
    for m in range(1, 400):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / (1 + term * d or _TINY)
            c = 1 + term / c or _TINY
            fraction *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return fraction


@lru_cache(maxsize=1024)
def quantile(freedom: int) -> float:
    """Return the two-sided 95 % quantile for this number of degrees of freedom.

    The distribution function of an odd or even number of degrees is a finite sum (Abramowitz & Stegun 26.7.3, 26.7.4);
    it is inverted by bisection. From 200 degrees on, the expansion 26.7.5 about the normal quantile.

    >>> round(quantile(1), 3), round(quantile(29), 4), round(quantile(400), 4)
    (12.706, 2.0452, 1.9659)

    Raises:
        ValueError: less than one degree of freedom.
    """
    if freedom < 1:
        raise ValueError(f"degrees of freedom must be 1 or more, got {freedom}")
    if freedom >= _LARGE:
        z = NORMAL
        return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    low = 0.0
    high = 13.0  # above the quantile of one degree, the largest
    for _ in range(60):
        middle = (low + high) / 2
        if _inside(middle, freedom) < 0.95:
            low = middle
        else:
            high = middle
    return low


def _inside(t: float, freedom: int) -> float:
    """Return the probability of a value within +-t."""
    angle = math.atan(t / math.sqrt(freedom))
    cosine = math.cos(angle)
    sine = math.sin(angle)
    if freedom % 2 == 0:
        term = 1.0
        total = 1.0
        for j in range(1, freedom // 2):
            term *= (2 * j - 1) / (2 * j) * cosine**2
            total += term
        return sine * total
    term = cosine
    total = cosine if freedom > 1 else 0.0
    for j in range(1, (freedom - 1) // 2):
        term *= 2 * j / (2 * j + 1) * cosine**2
        total += term
    return 2 / math.pi * (angle + sine * total)
