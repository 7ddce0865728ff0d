"""Sizes of ZebraLogic's grids (arXiv 2502.01100)."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

__all__ = ["cells", "size_class"]

_CLASSES = ((10**3, "small"), (10**6, "medium"), (10**10, "large"))
"""Upper bounds on the number of ways to fill a grid of each class."""


def cells(answer: object) -> int:
    """Return the number of graded cells: houses times columns.

    >>> cells({"header": ["House", "Name", "Pet"], "rows": [["1", "Eric", "cat"], ["2", "Bob", "dog"]]})
    4

    Raises:
        ValueError: not a grid.
    """
    houses, columns = _shape(answer)
    return houses * columns


def size_class(answer: object) -> str:
    """Return ``small``, ``medium``, ``large`` or ``x-large``, by the ``(houses!) ** columns`` ways to fill the grid.

    >>> size_class({"House 1": {"Name": "Eric"}, "House 2": {"Name": "Bob"}})
    'small'
    """
    houses, columns = _shape(answer)
    ways = math.factorial(houses) ** columns
    return next((name for bound, name in _CLASSES if ways < bound), "x-large")


def _shape(answer: object) -> tuple[int, int]:
    if isinstance(answer, str):
        answer = json.loads(answer)
    if isinstance(answer, Mapping) and {"header", "rows"} <= answer.keys():
        return len(answer["rows"]), len(answer["header"]) - 1
    if not isinstance(answer, Mapping) or not answer or not all(isinstance(v, Mapping) and v for v in answer.values()):
        raise ValueError("no grid")
    return len(answer), len(next(iter(answer.values())))
