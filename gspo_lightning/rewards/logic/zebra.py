"""Zebra grids: houses in a row, one value of every column in each, and clues that leave a single solution.

Answers are in ZebraLogic's format (arXiv 2502.01100): the last complete JSON object with ``solution``, which maps
``House 1`` ... to ``{column: value}``. Names and cells are compared in lower case and without outer spaces. Houses and
columns that the puzzle does not have are ignored, as in ZebraLogic; a cell with several values is wrong. Python
dictionaries and trailing commas are accepted, too.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from gspo_lightning.rewards.logic.base import Family, Grade, Puzzle
from gspo_lightning.rewards.logic.lenient import last_objects
from gspo_lightning.rewards.logic.zebra_clues import Cell, Clue, count_solutions, true_clues

__all__ = ["Zebra"]

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
        where = {(c, value): house for c, values in enumerate(grid) for house, value in enumerate(values)}
        cells = sorted(where)
        clues = true_clues(where, houses)
        rng.shuffle(clues)
        used = _fewest(clues, cells, houses)
        solution = {f"House {h + 1}": {column: grid[c][h] for c, column in enumerate(columns)} for h in range(houses)}
        listed = "\n".join(f"- {column}: {', '.join(sorted(grid[c]))}" for c, column in enumerate(columns))
        said = "\n".join(f"{i}. {clue.sentence(columns)}" for i, clue in enumerate(used, 1))
        example = {f"House {h + 1}": dict.fromkeys(columns, "...") for h in range(houses)}
        return Puzzle(
            key=json.dumps([sorted(clue.sentence(columns) for clue in used), solution], sort_keys=True),
            text=f"There are {houses} houses in a row, numbered 1 to {houses} from left to right. Each has one value "
            f"of every column, and no two houses share a value:\n{listed}\n\nClues:\n{said}",
            form=f"JSON: {json.dumps({'reasoning': '...', 'solution': example})}",
            answer=json.dumps(solution),
            solution=json.dumps({"reasoning": "", "solution": solution}),
        )

    def grade(self, text: str, answer: object) -> Grade:
        """Grade cell by cell.

        ``answer`` is ``{"House 1": {column: value}}``, or ZebraLogic's ``{"header": [...], "rows": [...]}``.
        """
        wanted = _gold(answer)
        total = sum(len(row) for row in wanted.values())
        found = _last_solution(text)
        if found is None:
            return Grade(0, total, "no JSON object with solution")
        correct = 0
        houses = _by_key(found, _house)
        for house, row in wanted.items():
            cells = _by_key(houses.get(_house(house)), _column)
            correct += sum(_says(cells.get(_column(column)), cell) for column, cell in row.items())
        return Grade(correct, total)


def _fewest(clues: Sequence[Clue], cells: Sequence[Cell], houses: int) -> list[Clue]:
    """Return the first clues that leave one solution, without superfluous ones."""
    low, high = 0, len(clues)
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
    found: Mapping[str, Any] | None = None
    for value in last_objects(text):
        solution = {key.strip().lower(): v for key, v in value.items()}.get("solution")
        if isinstance(solution, dict):
            found = solution
    return found


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
    return {str(h): {str(c): str(v).strip().lower() for c, v in row.items()} for h, row in answer.items()}
