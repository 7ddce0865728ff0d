"""The ``Family`` base class of puzzles: a generator that proves its solutions, and an exact checker."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

DIFFICULTIES = range(1, 6)
"""Difficulties that every generator takes; 1 is the easiest."""


@dataclass(frozen=True, slots=True)
class Puzzle:
    """A puzzle in two styles.

    ``text`` asks in English and ``form`` describes the form of the answer; ``compact`` asks in a notation over the
    alphabet of the tiny models ("" if a family has none). ``answer`` is the checker's input, as text; ``solution`` and
    ``compact_solution`` are right final answers, ``steps`` a derivation in the notation. Puzzles of the same meaning
    have the same ``key``, whatever their wording.
    """

    key: str
    text: str
    form: str
    answer: str
    solution: str
    compact: str = ""
    compact_solution: str = ""
    steps: str = ""


@dataclass(frozen=True, slots=True)
class Grade:
    """The correct part of an answer: ``correct`` of ``total`` cells; ``problem`` says why it could not be read."""

    correct: int
    total: int
    problem: str = ""

    @property
    def share(self) -> float:
        """The share of correct cells, in [0, 1]."""
        return self.correct / self.total

    @classmethod
    def unread(cls, problem: str) -> Grade:
        """Return a grade of 0: the text is not an answer of the family."""
        return cls(0, 1, problem)


class Family(ABC):
    """A kind of puzzle."""

    name: ClassVar[str]
    """Name of the family in settings and records."""
    marked: ClassVar[bool] = True
    """True if the final answer follows a marker; otherwise the checker finds it in the text by its form."""

    @abstractmethod
    def generate(self, rng: random.Random, difficulty: int) -> Puzzle | None:
        """Draw a puzzle of one of ``DIFFICULTIES``; None if this draw has no solution or several."""

    @abstractmethod
    def grade(self, text: str, answer: object) -> Grade:
        """Grade a final answer, of bounded length, against the record's answer.

        Raises:
            ValueError: the record's answer is not one of this family.
        """
