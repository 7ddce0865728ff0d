"""Test for a difference between two models on the same problems."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gspo_lightning.report.statistics.intervals import quantile

LEVEL = 0.05
_EXACT = 16
"""Number of differences up to which all 2^n changes of sign are enumerated."""
_DRAWS = 100_000
_PIECE = 1_000_000
"""Signs that are drawn at once, of 8 bytes each."""


@dataclass(frozen=True, slots=True)
class Difference:
    """B minus A over ``n`` problems: mean with a 95 % interval, p-value, and numbers of problems that differ."""

    value: float
    low: float | None
    high: float | None
    n: int
    p: float
    better: int
    """Problems on which B is above A."""
    worse: int

    @property
    def verdict(self) -> str:
        """Conclusion: ``better`` or ``worse`` if p is below :data:`LEVEL`, else a text that no difference is shown."""
        if self.p >= LEVEL:
            return "not enough problems to tell" if self.better + self.worse else "no difference seen"
        return "better" if self.value > 0 else "worse"


def difference(a: Sequence[float], b: Sequence[float]) -> Difference:
    """Compare B with A.

    The test is Fisher's: under the null hypothesis each problem's difference has either sign with equal probability,
    whatever its distribution. All 2^n signs are enumerated if at most 16 problems differ, else 100,000 are drawn
    (always the same). For few problems the error rate never exceeds :data:`LEVEL`: with 5 that differ, the least p is
    2 / 32, and nothing can be claimed. The interval is Student's over the differences. If the test claims nothing, the
    interval is widened to hold 0; if nothing differs, its ends are +-3 / n (the rule of three).

    Args:
        a: one value per problem, in [0, 1].
        b: the same problems, in the same order.

    Raises:
        ValueError: not the same number of problems, or none.

    >>> difference([0.0] * 5, [1.0] * 5).verdict
    'not enough problems to tell'
    >>> found = difference([0.0] * 10, [1.0] * 9 + [0.0])
    >>> found.p, found.verdict  # 9 of 9 for B: 2 / 2^9
    (0.00390625, 'better')
    """
    if len(a) != len(b) or not len(a):
        raise ValueError(f"the same problems are needed, got {len(a)} and {len(b)}")
    d = np.asarray(b, dtype=np.float64) - np.asarray(a, dtype=np.float64)
    mean = float(d.mean())
    changed = d[np.abs(d) > 1e-12]
    p = _p_of_signs(changed)
    low, high = _ends(d, mean, p)
    return Difference(mean, low, high, len(d), p, int((changed > 0).sum()), int((changed < 0).sum()))


@dataclass(frozen=True, slots=True)
class Fall:
    """Mean of B minus A over the ``n`` problems that both have, with its standard error."""

    value: float
    error: float
    n: int


def fall(a: Mapping[int, float], b: Mapping[int, float], errors: float) -> Fall | None:
    """Return by how much B is below A, if that is more than chance explains; None if it is not.

    The standard error is that of a paired difference: problems that are hard for both add nothing to it. Where all
    differences are equal it is 0, and the test of :func:`difference` alone decides: five problems prove nothing.

    Args:
        a: problem -> value, of any scale.
        b: the same later; problems that only one of them has do not count.
        errors: standard errors that the fall must exceed.

    >>> right = {problem: 1.0 for problem in range(400)}
    >>> fall(right, {**right, 0: 0.0, 1: 0.0}, errors=3)  # two of 400
    >>> fall(right, {problem: float(problem >= 20) for problem in right}, errors=3)  # doctest: +ELLIPSIS
    Fall(value=-0.05, error=0.0109..., n=400)
    """
    both = sorted(a.keys() & b.keys())
    if len(both) < 2:
        return None
    d = np.array([b[problem] - a[problem] for problem in both], dtype=np.float64)
    mean = float(d.mean())
    error = float(d.std(ddof=1)) / math.sqrt(len(d))
    if mean >= 0 or -mean <= errors * error:
        return None
    changed = d[np.abs(d) > 1e-12]
    if _hoeffding(changed) >= LEVEL and _p_of_signs(changed) >= LEVEL:
        return None
    return Fall(mean, error, len(d))


def _hoeffding(changed: np.ndarray) -> float:
    """Return Hoeffding's bound of :func:`_p_of_signs`: it needs no draws, and most falls are clear by it."""
    return 2 * math.exp(-(float(changed.sum()) ** 2) / (2 * float((changed**2).sum())))


def _p_of_signs(changed: np.ndarray) -> float:
    """Return the share of changes of sign that make the sum as large as it is: all of them, or those that are drawn."""
    if len(changed) == 0:
        return 1.0
    threshold = abs(float(changed.sum())) - 1e-9  # equal sums may differ by rounding
    if len(changed) <= _EXACT:
        codes = np.arange(2 ** len(changed))[:, None] >> np.arange(len(changed)) & 1
        sums = (1 - 2 * codes) @ changed
        return float((np.abs(sums) >= threshold).mean())
    random = np.random.Generator(np.random.Philox(2707))
    extreme = 0
    rows = max(4, _PIECE // len(changed) // 4 * 4)  # four draws share 32 random bits: any such piece goes on with them
    for start in range(0, _DRAWS, rows):
        shape = (min(rows, _DRAWS - start), len(changed))
        signs = 1 - 2.0 * random.integers(0, 2, size=shape, dtype=np.int8)
        extreme += int((np.abs(signs @ changed) >= threshold).sum())
    return (extreme + 1) / (_DRAWS + 1)  # the observed signs count as one of the draws


def _ends(d: np.ndarray, mean: float, p: float) -> tuple[float | None, float | None]:
    n = len(d)
    if n < 2:
        return None, None
    half = quantile(n - 1) * float(d.std(ddof=1)) / math.sqrt(n) if d.any() else 3 / n
    low = max(-1.0, mean - half)
    high = min(1.0, mean + half)
    return (min(low, 0.0), max(high, 0.0)) if p >= LEVEL else (low, high)
