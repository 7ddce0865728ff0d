"""Verdict: one judgement of a run, its level and its place on the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

Level = Literal["bad", "look", "note", "fine"]
LEVELS: dict[Level, str] = {"bad": "✖", "look": "!", "note": "i", "fine": "✓"}
"""Level -> its mark, the worst first."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A judgement: ``topic`` (learning, stability ...), ``word``, and the ``sentence`` with its numbers.

    ``bad`` is a collapse that training's watch recognises, or a fault of the setup; ``look`` is a number outside of its
    healthy band; ``note`` is worth knowing. ``link`` is the address of the place to look, on the page of ``gspo view``.
    """

    topic: str
    level: Level
    word: str
    sentence: str
    link: str = "#overview"

    @property
    def mark(self) -> str:
        """The sign of its level."""
        return LEVELS[self.level]

    @property
    def line(self) -> str:
        """The judgement as a line of a terminal."""
        return f"{self.mark} {self.topic}: {self.word} ({self.sentence})"

    def plain(self) -> dict[str, Any]:
        """Return the fields."""
        return asdict(self)


def worst_first(found: Sequence[Verdict]) -> list[Verdict]:
    """Return verdicts by their level, in their order otherwise."""
    return sorted(found, key=lambda verdict: list(LEVELS).index(verdict.level))
