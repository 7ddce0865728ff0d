"""Equality of rewards: a difference by rounding only is none.

Sums of weighted rewards round: 0.1 + 0.2 is not 0.3, so two responses of the same worth may differ in the last digit.
Whatever compares rewards asks here: dead groups, advantages, resampling, curricula, correctness, records. The functions
take numbers, arrays and tensors alike, and import neither torch nor NumPy.
"""

from __future__ import annotations

from typing import Any

ROUNDING = 1e-9
"""Rewards are equal if they differ by at most this share of the largest absolute one: millions of float64 roundings."""
SINGLE = 1e-6
"""The same where only float32 is known, as of a float32 tensor or a critic's values: eight float32 roundings."""
RESIDUE = 1e-13
"""A sum is 0 if it is at most this share of its largest term: what is left of terms that cancel."""


def equal(a: Any, b: Any, scale: Any = None, relative: float = ROUNDING) -> Any:
    """Return whether rewards differ by rounding only: a bool, or an array or tensor of bools.

    Args:
        a: rewards, finite; for the spread of a group its lowest.
        b: rewards, finite; for the spread of a group its highest.
        scale: largest absolute reward; None takes the larger of ``a`` and ``b``.
        relative: largest difference of equal rewards, as a share of ``scale``.

    >>> equal(0.1 + 0.2, 0.3), equal(0.3, 0.3001), equal(0.0, 1e-300)
    (True, False, False)
    """
    gap = abs(a - b)
    if scale is not None:
        return gap <= relative * scale
    return (gap <= relative * abs(a)) | (gap <= relative * abs(b))


def at_least(value: Any, bound: float) -> Any:
    """Return whether rewards reach a bound, or miss it by rounding only.

    >>> 0.7 + 0.2 + 0.1 >= 1.0, at_least(0.7 + 0.2 + 0.1, 1.0)
    (False, True)
    """
    return (value >= bound) | equal(value, bound)


def is_right(reward: float | None) -> bool:
    """Return whether a reward counts as a right answer: at least 1, but for rounding; a missing one does not.

    >>> is_right(0.7 + 0.2 + 0.1), is_right(0.99), is_right(None)
    (True, False, False)
    """
    return reward is not None and bool(at_least(reward, 1.0))


def is_residue(total: Any, largest_term: Any) -> Any:
    """Return whether a sum is what rounding left of terms that cancel; it stands for 0.

    >>> is_residue(0.3 - 3 * 0.1, 0.3), is_residue(1000 - 999.9999, 1000)
    (True, False)
    """
    return abs(total) <= RESIDUE * largest_term
