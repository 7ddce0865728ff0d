"""Mini sudoku: a grid of 4 rows; every row, column and 2x2 box holds 1, 2, 3 and 4."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterator, Sequence
from typing import ClassVar

from gspo_lightning.rewards.logic.family import Family, Grade, Puzzle
from gspo_lightning.rewards.logic.final import without_emphasis

_BLANKS = (0, 4, 6, 8, 10, 12)
"""Number of blanks by difficulty; no puzzle with a single solution has more than 12."""


def _share_a_unit(cell: int, other: int) -> bool:
    """True if two cells, counted row by row, are in one row, column or 2x2 box."""
    row, column = divmod(cell, 4)
    other_row, other_column = divmod(other, 4)
    same_box = row // 2 == other_row // 2 and column // 2 == other_column // 2
    return row == other_row or column == other_column or same_box


_PEERS = [[other for other in range(16) if other != cell and _share_a_unit(cell, other)] for cell in range(16)]
_SEPARATORS = re.compile(r"[\s/|,;\[\]+-]+")
_LAYOUT = re.compile(r"\\(?:begin|end)\{(?:[a-z]{0,8}matrix|array)\}(?:\{[c|]+\})?|\\hline|[&\\\"'(){}\u2500-\u257f]")
"""Markup that only draws a grid: matrices in LaTeX, quotation marks, brackets, box-drawing characters."""
_ROW = re.compile(r"\br(?:ow)?\s*([1-4])\s*[:=]|^\s*([1-4]):(?=\s)", re.IGNORECASE | re.MULTILINE)


class Sudoku(Family):
    """4x4 sudoku puzzles; the difficulty sets the number of blanks: 4, 6, 8, 10, 12.

    Cells are digits, blanks are dots, rows are joined by ``/``: ``1.3./..2./.1../3...``. Only blanks count as cells of
    the answer, and an answer that changes a given digit is worth nothing.
    """

    name: ClassVar[str] = "sudoku"

    def generate(self, rng: random.Random, difficulty: int) -> Puzzle | None:
        """Remove digits from a full grid as long as a search finds no second solution."""
        full = next(solutions([0] * 16, rng))
        givens = list(full)
        blanks = 0
        for cell in rng.sample(range(16), 16):
            if blanks == _BLANKS[difficulty]:
                break
            givens[cell] = 0
            unique = len(list(itertools.islice(solutions(givens), 2))) == 1
            givens[cell] = 0 if unique else full[cell]
            blanks += unique
        if blanks < _BLANKS[difficulty]:
            return None
        puzzle = _rows(givens)
        solution = _rows(full)
        return Puzzle(
            key=puzzle,
            text="Fill the dots of this 4x4 sudoku so that every row, every column and every 2x2 box holds 1, 2, 3 and "
            "4:\n" + puzzle.replace("/", "\n"),
            form="the four rows, such as 1234/3412/2143/4321",
            answer=f"{puzzle} = {solution}",
            solution=solution,
            compact=puzzle,
            compact_solution=solution,
        )

    def grade(self, text: str, answer: object) -> Grade:
        """Grade the blanks; ``answer`` is ``givens = solution``, or the solution alone."""
        givens, solution = _gold(answer)
        text = without_emphasis(text)
        row_labels = [first or second for first, second in _ROW.findall(text)]
        if row_labels and row_labels != list("1234"):
            return Grade.unread("not rows 1 to 4, each once and in order")
        digits = _SEPARATORS.sub("", _LAYOUT.sub(" ", _ROW.sub(" ", text)))
        if not re.fullmatch("[1-4]{16}", digits):
            return Grade.unread("not 16 digits from 1 to 4")
        if any(given not in (".", cell) for given, cell in zip(givens, digits, strict=True)):
            return Grade.unread("a given digit was changed")
        blanks = [i for i, given in enumerate(givens) if given == "."]
        correct = sum(digits[i] == solution[i] for i in blanks)
        return Grade(correct, len(blanks))


def solutions(givens: Sequence[int], rng: random.Random | None = None) -> Iterator[list[int]]:
    """Iterate over all full grids that keep the givens (0 is a blank), in random order if ``rng`` is given.

    >>> len(list(solutions([0] * 16)))
    288
    """
    choices: dict[int, set[int]] = {}
    for cell, digit in enumerate(givens):
        if digit == 0:
            choices[cell] = {1, 2, 3, 4} - {givens[peer] for peer in _PEERS[cell]}
    if not choices:
        yield list(givens)
        return
    cell = min(choices, key=lambda i: len(choices[i]))
    digits = sorted(choices[cell])
    if rng is not None:
        rng.shuffle(digits)
    for digit in digits:
        yield from solutions([*givens[:cell], digit, *givens[cell + 1 :]], rng)


def _rows(cells: Sequence[int]) -> str:
    text = "".join(str(c) if c else "." for c in cells)
    return "/".join(text[i : i + 4] for i in range(0, 16, 4))


def _gold(answer: object) -> tuple[str, str]:
    if not isinstance(answer, str):
        raise ValueError(f"{answer!r} is not text")
    left, equals, right = answer.partition("=")
    if not equals:  # the solution alone: all cells are blanks
        right = left
        left = "." * 16
    givens = _SEPARATORS.sub("", left)
    solution = _SEPARATORS.sub("", right)
    fits = len(givens) == len(solution) and all(g in (".", s) for g, s in zip(givens, solution, strict=True))
    if not fits or not re.fullmatch("[1-4]{16}", solution) or "." not in givens:
        raise ValueError(f"{answer!r} is not like 1.../..2./.3../...4 = 1243/...")
    return givens, solution
