"""Quantiles of Student's t distribution."""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

__all__ = ["NORMAL", "quantile"]

NORMAL = NormalDist().inv_cdf(0.975)
"""The two-sided 95 % quantile of the normal distribution, 1.96."""
_LARGE = 200
"""Degrees of freedom from which two terms of the expansion about the normal quantile are exact to seven digits."""


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
    low, high = 0.0, 13.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _inside(middle, freedom) < 0.95 else (low, middle)
    return low


def _inside(t: float, freedom: int) -> float:
    """Return the probability of a value within +-t."""
    angle = math.atan(t / math.sqrt(freedom))
    cosine, sine = math.cos(angle), math.sin(angle)
    if freedom % 2 == 0:
        term, total = 1.0, 1.0
        for j in range(1, freedom // 2):
            term *= (2 * j - 1) / (2 * j) * cosine**2
            total += term
        return sine * total
    term, total = cosine, cosine if freedom > 1 else 0.0
    for j in range(1, (freedom - 1) // 2):
        term *= 2 * j / (2 * j + 1) * cosine**2
        total += term
    return 2 / math.pi * (angle + sine * total)
