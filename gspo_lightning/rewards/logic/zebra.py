"""Zebra grids: houses in a row, one value of every column in each, and clues that leave a single solution.

Answers are in ZebraLogic's format (arXiv 2502.01100): the last complete JSON object with ``solution``, which maps
``House 1`` ... to ``{column: value}``. Names and cells are compared in lower case and without outer spaces. Houses and
columns that the puzzle does not have are ignored, as in ZebraLogic; a cell with several values is wrong. Python
dictionaries and trailing commas are accepted, too.
"""

from __future__ import annotations

import itertools
import json
import random
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, NamedTuple

from gspo_lightning.rewards.logic.family import Family, Grade, Puzzle
from gspo_lightning.rewards.logic.lenient import last_objects

_SIZES = ((0, 0), (2, 3), (3, 3), (4, 4), (5, 5), (6, 6))
"""Number of houses and columns by difficulty."""
_COLUMNS = {
    "Name": ("Arnold", "Eric", "Peter", "Alice", "Bob", "Carol"),
    "Drink": ("tea", "water", "milk", "coffee", "juice", "cocoa"),
    "Pet": ("cat", "dog", "fish", "bird", "horse", "rabbit"),
    "Color": ("red", "green", "blue", "yellow", "white", "purple"),
    "Food": ("pizza", "soup", "stew", "pasta", "salad", "curry"),
    "Hobby": ("chess", "painting", "cooking", "gardening", "running", "music"),
}
Cell = tuple[int, str]
"""Column and value of a cell."""


class Zebra(Family):
    """Zebra puzzles, from 2 houses x 3 columns up to 6 x 6.

    The generator shuffles the clues that are true of a random grid, adds them until a search finds no second solution,
    and drops each clue that the others make superfluous.
    """

    name: ClassVar[str] = "zebra"
    marked: ClassVar[bool] = False

    def generate(self, rng: random.Random, difficulty: int) -> Puzzle | None:
        """Draw a grid and reduce its shuffled clues to those that determine it."""
        houses, width = _SIZES[difficulty]
        columns = rng.sample(list(_COLUMNS), width)
        grid = [rng.sample(_COLUMNS[column][:houses], houses) for column in columns]
        where: dict[Cell, int] = {}
        for number, values in enumerate(grid):
            for house, value in enumerate(values):
                where[number, value] = house
        cells = sorted(where)
        clues = true_clues(where, houses)
        rng.shuffle(clues)
        used = _fewest(clues, cells, houses)
        solution = {}
        for house, row in enumerate(zip(*grid, strict=True)):
            solution[f"House {house + 1}"] = dict(zip(columns, row, strict=True))
        listed = "\n".join(f"- {column}: {', '.join(sorted(grid[c]))}" for c, column in enumerate(columns))
        numbered = "\n".join(f"{i}. {clue.sentence(columns)}" for i, clue in enumerate(used, 1))
        example = {f"House {h + 1}": dict.fromkeys(columns, "...") for h in range(houses)}
        return Puzzle(
            key=json.dumps([sorted(clue.sentence(columns) for clue in used), solution], sort_keys=True),
            text=f"There are {houses} houses in a row, numbered 1 to {houses} from left to right. Each has one value "
            f"of every column, and no two houses share a value:\n{listed}\n\nClues:\n{numbered}",
            form=f"JSON: {json.dumps({'reasoning': '...', 'solution': example})}",
            answer=json.dumps(solution),
            solution=json.dumps({"reasoning": "", "solution": solution}),
        )

    def grade(self, text: str, answer: object) -> Grade:
        """Grade cell by cell.

        ``answer`` is ``{"House 1": {column: value}}``, or ZebraLogic's ``{"header": [...], "rows": [...]}``.
        """
        gold = _gold(answer)
        total = sum(len(row) for row in gold.values())
        solution = _last_solution(text)
        if solution is None:
            return Grade(0, total, "no JSON object with solution")
        correct = 0
        houses = _by_key(solution, _house)
        for house, row in gold.items():
            cells = _by_key(houses.get(_house(house)), _column)
            for column, value in row.items():
                correct += _says(cells.get(_column(column)), value)
        return Grade(correct, total)


def _fewest(clues: Sequence[Clue], cells: Sequence[Cell], houses: int) -> list[Clue]:
    """Return the first clues that leave one solution, without superfluous ones."""
    low = 0
    high = len(clues)
    while low < high:
        middle = (low + high) // 2
        if count_solutions(clues[:middle], cells, houses, most=2) == 1:
            high = middle
        else:
            low = middle + 1
    kept = list(clues[:high])
    for clue in clues[:high]:
        rest = [c for c in kept if c != clue]
        if count_solutions(rest, cells, houses, most=2) == 1:
            kept = rest
    return kept


def _last_solution(text: str) -> Mapping[str, Any] | None:
    """Return the value of ``solution`` in the last outermost object that has one."""
    last: Mapping[str, Any] | None = None
    for reply in last_objects(text):
        solution = {key.strip().lower(): value for key, value in reply.items()}.get("solution")
        if isinstance(solution, dict):
            last = solution
    return last


def _by_key(value: object, key: Callable[[str], str]) -> dict[str, Any]:
    """Return an object under simplified keys; keys that collide are two guesses and are left out."""
    if not isinstance(value, Mapping):
        return {}
    times = Counter(key(k) for k in value)
    return {key(k): v for k, v in value.items() if times[key(k)] == 1}


def _house(name: str) -> str:
    """Normalize a house name: ``House 1``, ``house_1``, ``HOUSE1`` and ``1`` are one house."""
    return re.sub(r"[\s_-]", "", name).lower().removeprefix("house")


def _column(name: str) -> str:
    return name.strip().lower()


def _says(value: object, cell: str) -> bool:
    return isinstance(value, str) and value.strip().strip("*`").strip().lower() == cell


def _gold(answer: object) -> dict[str, dict[str, str]]:
    if isinstance(answer, str):
        answer = json.loads(answer)
    if isinstance(answer, Mapping) and {"header", "rows"} <= answer.keys():
        header = list(answer["header"])
        answer = {f"House {row[0]}": dict(zip(header[1:], row[1:], strict=True)) for row in answer["rows"]}
    if not isinstance(answer, Mapping) or not answer or not all(isinstance(v, Mapping) and v for v in answer.values()):
        raise ValueError(f"{str(answer)[:80]!r} is not a grid")
    gold = {}
    for house, row in answer.items():
        gold[str(house)] = {str(column): str(value).strip().lower() for column, value in row.items()}
    return gold


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
    clues = []
    for cell in sorted(where):
        clues.append(Clue("in", cell, house=where[cell]))
        clues += [Clue("not in", cell, house=h) for h in range(houses) if h != where[cell]]
    for first, second in itertools.permutations(sorted(where), 2):
        for kind, relation in _RELATIONS.items():
            symmetric = kind in ("same", "beside", "gap")
            if (symmetric and first > second) or (kind == "same" and first[0] == second[0]):
                continue
            if relation.holds(where[first], where[second]):
                clues.append(Clue(kind, first, second))
    return clues


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
    open_cells = [cell for cell, mask in domains.items() if mask & (mask - 1)]  # several bits: several houses
    if not open_cells:
        return 1
    cell = min(open_cells, key=lambda c: domains[c].bit_count())
    count = 0
    for house in range(houses):
        if domains[cell] >> house & 1:
            count += _count({**domains, cell: 1 << house}, clues, houses, most - count)
            if count >= most:
                break
    return count


def _narrow(domains: dict[Cell, int], clues: Sequence[Clue], houses: int) -> bool:
    """Remove impossible houses, in place, until nothing changes; False if a cell is left without a house."""
    columns: dict[int, list[Cell]] = {}
    for cell in domains:
        columns.setdefault(cell[0], []).append(cell)
    while True:
        old_masks = list(domains.values())
        for clue in clues:
            _apply(clue, domains, houses)
        for values in columns.values():
            _all_different(values, domains, houses)
        if 0 in domains.values():
            return False
        if old_masks == list(domains.values()):
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
    forwards = [0] * houses
    backwards = [0] * houses
    for first, second in itertools.product(range(houses), repeat=2):
        if _RELATIONS[kind].holds(first, second):
            forwards[first] |= 1 << second
            backwards[second] |= 1 << first
    return forwards, backwards


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
