"""What a family of puzzles is: a generator that proves its solutions, and an exact checker."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

__all__ = ["DIFFICULTIES", "Family", "Grade", "Puzzle"]

DIFFICULTIES = range(1, 6)
"""What every generator takes; 1 is the easiest."""


@dataclass(frozen=True, slots=True)
class Puzzle:
    """One puzzle in two styles.

    ``text`` asks in English and ``form`` says how the answer is written; ``compact`` asks in a notation over the
    alphabet of the tiny models ("" where a family has none). ``answer`` is what the checker needs, as text;
    ``solution`` and ``compact_solution`` are right final answers, ``steps`` a way to find it, written down in the
    notation. Puzzles of the same meaning have the same ``key``, however they are worded.
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
    """How much of an answer is right: ``correct`` of ``total`` cells; ``problem`` says why it could not be read."""

    correct: int
    total: int
    problem: str = ""

    @property
    def share(self) -> float:
        """Of the cells that are right, in [0, 1]."""
        return self.correct / self.total

    @classmethod
    def unread(cls, problem: str) -> Grade:
        """Nothing is right: this is no answer of the family."""
        return cls(0, 1, problem)


class Family(ABC):
    """One kind of puzzle."""

    name: ClassVar[str]
    """In settings and records."""
    marked: ClassVar[bool] = True
    """Whether the final answer follows a marker; otherwise the checker finds it in the text by its own form."""

    @abstractmethod
    def generate(self, rng: random.Random, difficulty: int) -> Puzzle | None:
        """A puzzle from one of ``DIFFICULTIES``; None where this draw has no or no single solution."""

    @abstractmethod
    def grade(self, text: str, answer: object) -> Grade:
        """Compare a final answer, of bounded length, with the record's answer.

        Raises:
            ValueError: the record's answer is none of this family.
        """
