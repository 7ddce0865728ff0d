"""Interval of a success probability: Jeffreys' posterior, a Beta distribution."""

from __future__ import annotations

import math

__all__ = ["beta_interval"]

_PRIOR = 0.5
_TINY = 1e-300


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
    a, b = passes + _PRIOR, trials - passes + _PRIOR
    low = 0.0 if passes == 0 else _quantile(0.025, a, b)
    high = 1.0 if passes == trials else _quantile(0.975, a, b)
    return low, high


def _quantile(share: float, a: float, b: float) -> float:
    """Invert the distribution function by bisection."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _below(middle, a, b) < share else (low, middle)
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
    c, d = 1.0, 1 / (1 - (a + b) * x / (a + 1) or _TINY)
    found = d
    for m in range(1, 400):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / (1 + term * d or _TINY)
            c = 1 + term / c or _TINY
            found *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return found
