"""Generated logic puzzles as prompts; puzzle families of the rewards check the answers."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cached_property
from typing import Literal

from gspo_lightning.core.errors import UserError, did_you_mean
from gspo_lightning.core.randomness import stable_hash, stream
from gspo_lightning.data.prompts.prompt_set import PromptSet, Record
from gspo_lightning.rewards.logic import FAMILIES, Puzzle
from gspo_lightning.rewards.logic.family import DIFFICULTIES

Split = Literal["cold_start", "train", "held_out"]
Style = Literal["text", "compact"]
_SHARES: dict[Split, range] = {"cold_start": range(0, 4), "train": range(4, 9), "held_out": range(9, 10)}
_PATIENCE = 20_000
"""Draws in a row without a new puzzle after which a family counts as exhausted."""


class LogicTask(PromptSet):
    """Logic puzzles of one family, for the reward ``LogicPuzzle``.

    The three splits are disjoint by construction: a hash of the puzzle's meaning decides its split, whatever the seed
    and the style.

    Args:
        family: ``knights``, ``zebra``, ``countdown`` or ``sudoku``.
        split: ``cold_start``, ``train`` or ``held_out``.
        size: number of prompts.
        difficulty: 1 to 5.
        seed: of the puzzles drawn.
        style: ``text`` asks in English, for real models (the answer is in ``<answer>`` tags); ``compact`` uses a
            notation in the alphabet of the tiny models (the answer follows ``#``); for knights it goes up to
            difficulty 2. Zebra grids have no such notation.
        step_share: share of the demonstrations that write down the steps to the answer (knights, ``compact``).
    """

    def __init__(
        self,
        family: str = "knights",
        split: Split = "train",
        size: int = 4096,
        difficulty: int = 2,
        seed: int = 0,
        style: Style = "text",
        step_share: float = 0.3,
    ) -> None:
        if family not in FAMILIES:
            raise UserError("LogicTask.family", f"{family!r} is not a family; {did_you_mean(family, FAMILIES)}")
        if split not in _SHARES:
            raise UserError("LogicTask.split", f"is {split!r}; it must be one of {', '.join(_SHARES)}")
        if size < 1:
            raise UserError("LogicTask.size", f"is {size}; it must be at least 1")
        if difficulty not in DIFFICULTIES:
            raise UserError("LogicTask.difficulty", f"is {difficulty}; it must lie in 1 to {DIFFICULTIES[-1]}")
        if style not in ("text", "compact"):
            raise UserError("LogicTask.style", f"is {style!r}; it must be text or compact")
        if style == "compact" and family == "zebra":
            raise UserError("LogicTask.style", "zebra grids have no compact notation", fix="use style: text")
        if not 0 <= step_share <= 1:
            raise UserError("LogicTask.step_share", f"is {step_share}; it must lie in [0, 1]")
        self.family = family
        self.split = split
        self.size = size
        self.difficulty = difficulty
        self.seed = seed
        self.style = style
        self.step_share = step_share

    def records(self) -> Sequence[Record]:
        """Return records with ``prompt``, ``answer`` and ``family``."""
        return [{"prompt": self._ask(p), "answer": p.answer, "family": self.family} for p in self._puzzles]

    def demonstrations(self) -> Sequence[tuple[str, str]]:
        """Return (prompt, completion) pairs: most answer at once, a share ``step_share`` shows the steps."""
        pairs = []
        for i, puzzle in enumerate(self._puzzles):
            shows = stream(self.seed, 1, i) % 1_000_000 < self.step_share * 1_000_000
            steps = puzzle.steps if shows else ""
            compact = f"{steps}#{puzzle.compact_solution}"
            text = puzzle.solution if self.family == "zebra" else f"<answer>{puzzle.solution}</answer>"
            pairs.append((self._ask(puzzle), compact if self.style == "compact" else text))
        return pairs

    def _ask(self, puzzle: Puzzle) -> str:
        if self.style == "compact":
            return f"{puzzle.compact}?"
        where = "" if self.family == "zebra" else " between <answer> and </answer>"
        return f"{puzzle.text}\n\nGive the final answer{where} as {puzzle.form}."

    @cached_property
    def _puzzles(self) -> list[Puzzle]:
        puzzles: dict[str, Puzzle] = {}
        counter = idle = 0
        while len(puzzles) < self.size:
            puzzle = FAMILIES[self.family].generate(random.Random(stream(self.seed, counter)), self.difficulty)
            counter += 1
            idle += 1
            if puzzle is None or stable_hash(puzzle.key) % 10 not in _SHARES[self.split] or puzzle.text in puzzles:
                if idle == _PATIENCE:
                    raise UserError(
                        "LogicTask.size",
                        f"is {self.size}, but only {len(puzzles)} puzzles of {self.family} with difficulty "
                        f"{self.difficulty} were found for {self.split}",
                        fix="lower the size or raise the difficulty",
                    )
                continue
            puzzles[puzzle.text] = puzzle
            idle = 0
        return list(puzzles.values())
