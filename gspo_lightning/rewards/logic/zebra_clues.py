"""Clues of zebra grids: their sentences, the clues that are true of a grid, and the number of grids they leave."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

__all__ = ["Cell", "Clue", "count_solutions", "true_clues"]

Cell = tuple[int, str]
"""Column and value of a cell."""


class _Relation(NamedTuple):
    holds: Callable[[int, int], bool]
    """True if the relation holds for the houses of two cells."""
    words: str


_RELATIONS = {
    "same": _Relation(lambda a, b: a == b, "is in the same house as"),
    "left": _Relation(lambda a, b: a + 1 == b, "is directly left of"),
    "before": _Relation(lambda a, b: a < b, "is somewhere to the left of"),
    "beside": _Relation(lambda a, b: abs(a - b) == 1, "is next to"),
    "gap": _Relation(lambda a, b: abs(a - b) == 2, "has one house between it and"),
}


@dataclass(frozen=True, slots=True)
class Clue:
    """A clue: ``kind`` is a relation of two cells, or ``in`` / ``not in`` with a house (counted from 0)."""

    kind: str
    first: Cell
    second: Cell | None = None
    house: int = -1

    def sentence(self, columns: Sequence[str]) -> str:
        """Return the clue as an English sentence.

        >>> Clue("left", (0, "Eric"), (1, "tea")).sentence(["Name", "Drink"])
        'Name Eric is directly left of Drink tea.'
        """
        subject = f"{columns[self.first[0]]} {self.first[1]}"
        if self.second is None:
            return f"{subject} is {self.kind} house {self.house + 1}."
        return f"{subject} {_RELATIONS[self.kind].words} {columns[self.second[0]]} {self.second[1]}."


def true_clues(where: Mapping[Cell, int], houses: int) -> list[Clue]:
    """Return every clue that is true of a grid, given as the house of each cell, in a fixed order."""
    found = []
    for cell in sorted(where):
        found.append(Clue("in", cell, house=where[cell]))
        found += [Clue("not in", cell, house=h) for h in range(houses) if h != where[cell]]
    for first, second in itertools.permutations(sorted(where), 2):
        for kind, relation in _RELATIONS.items():
            symmetric = kind in ("same", "beside", "gap")
            if (symmetric and first > second) or (kind == "same" and first[0] == second[0]):
                continue
            if relation.holds(where[first], where[second]):
                found.append(Clue(kind, first, second))
    return found


def count_solutions(clues: Sequence[Clue], cells: Sequence[Cell], houses: int, most: int) -> int:
    """Count the grids that fit, up to ``most``.

    Domains are bit masks of houses per cell. Clues and "no two values of a column in one house" narrow them down, then
    the smallest one is split.
    """
    domains = dict.fromkeys(cells, (1 << houses) - 1)
    return _count(domains, clues, houses, most)


def _count(domains: dict[Cell, int], clues: Sequence[Clue], houses: int, most: int) -> int:
    if not _narrow(domains, clues, houses):
        return 0
    open_cells = [cell for cell, mask in domains.items() if mask & (mask - 1)]
    if not open_cells:
        return 1
    cell = min(open_cells, key=lambda c: domains[c].bit_count())
    found = 0
    for house in range(houses):
        if domains[cell] >> house & 1:
            found += _count({**domains, cell: 1 << house}, clues, houses, most - found)
            if found >= most:
                break
    return found


def _narrow(domains: dict[Cell, int], clues: Sequence[Clue], houses: int) -> bool:
    """Remove impossible houses, in place, until nothing changes; False if a cell is left without a house."""
    columns: dict[int, list[Cell]] = {}
    for cell in domains:
        columns.setdefault(cell[0], []).append(cell)
    changed = True
    while changed:
        before = list(domains.values())
        for clue in clues:
            _apply(clue, domains, houses)
        for values in columns.values():
            _all_different(values, domains, houses)
        if 0 in domains.values():
            return False
        changed = before != list(domains.values())
    return True


def _apply(clue: Clue, domains: dict[Cell, int], houses: int) -> None:
    first = domains[clue.first]
    if clue.second is None:
        here = 1 << clue.house
        domains[clue.first] = first & (here if clue.kind == "in" else ~here)
        return
    second = domains[clue.second]
    forwards, backwards = _reach(clue.kind, houses)
    domains[clue.first] = sum(1 << a for a, mask in enumerate(forwards) if first >> a & 1 and mask & second)
    domains[clue.second] = sum(1 << b for b, mask in enumerate(backwards) if second >> b & 1 and mask & first)


@cache
def _reach(kind: str, houses: int) -> tuple[list[int], list[int]]:
    """Return, for each house of the first cell, the mask of possible houses of the second, and vice versa."""
    holds = _RELATIONS[kind].holds
    forwards = [sum(1 << b for b in range(houses) if holds(a, b)) for a in range(houses)]
    return forwards, [sum(1 << a for a in range(houses) if holds(a, b)) for b in range(houses)]


def _all_different(values: Sequence[Cell], domains: dict[Cell, int], houses: int) -> None:
    for cell in values:
        mask = domains[cell]
        if mask & (mask - 1) == 0:  # decided: excluded for all other values
            for other in values:
                if other != cell:
                    domains[other] &= ~mask
    for house in range(houses):
        able = [cell for cell in values if domains[cell] >> house & 1]
        if len(able) == 1:
            domains[able[0]] = 1 << house
