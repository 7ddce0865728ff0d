"""Refuse dict keys and set items with too many hash collisions: a program could choose them to collide."""

from __future__ import annotations

TYPE_CHECKING = False  # importing typing would take longer than all of this
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

MOST_COLLISIONS = 128
"""Most values with the same hash.

Each is compared with all others, which for a few hundred thousand takes minutes. Among honest values, powers of two
collide most (one in 61), and tuples of -1 and -2, which have one hash.
"""
_MOST_COSTLY = 8
"""The same limit if some keys are decimals or fractions: comparing one with an integer converts the integer."""
_MOST_BITS = 1 << 14
"""Most bits of an integer key."""
_CHEAP = (int, float, str, bool, bytes, complex, type(None))


def checked(keys: Sequence[Any]) -> Sequence[Any]:
    """Return the same values, or refuse them.

    >>> checked([0, 1, 2])
    [0, 1, 2]

    Raises:
        ValueError: too many of them have the same hash, or one is an integer beyond all use.
        TypeError: one of them has none.
    """
    cheap = [_is_cheap(key) for key in keys]  # a list, because every key must be checked
    most = MOST_COLLISIONS if all(cheap) else _MOST_COSTLY
    if len(keys) > most:
        hashes = sorted(map(hash, keys))  # sorted rather than counted in a dict, whose keys would collide
        if any(first == second for first, second in zip(hashes, hashes[most:], strict=False)):
            raise ValueError(f"more than {most} keys with the same hash")
    return keys


def _is_cheap(key: object) -> bool:
    """True if comparing the key takes no longer than reading it.

    Raises:
        ValueError: an integer that has too many bits.
    """
    if type(key) is tuple:
        cheap = [_is_cheap(item) for item in key]
        return all(cheap)
    if type(key) is int and key.bit_length() > _MOST_BITS:
        raise ValueError(f"an integer of {key.bit_length()} bits as a key")
    return type(key) in _CHEAP
