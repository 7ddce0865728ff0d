"""Plain values: what every JSON parser reads, and a few of many."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any


def spread(values: Sequence[Any], count: int) -> list[Any]:
    """Return the first and the last of some values, and others evenly between them.

    >>> spread("abcdefghij", 4), spread("abc", 4)
    (['a', 'd', 'g', 'j'], ['a', 'b', 'c'])
    """
    if len(values) <= count:
        return list(values)
    return [values[i * (len(values) - 1) // (count - 1)] for i in range(count)]


def clean(value: Any) -> Any:
    """Return JSON values that every parser reads: no NaN, no infinity, no lone surrogate, no other type."""
    if isinstance(value, Mapping):
        return {str(clean(str(key))): clean(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [clean(inner) for inner in value]
    if isinstance(value, bool | int) or value is None:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return str(value).encode("utf-8", "replace").decode("utf-8")
