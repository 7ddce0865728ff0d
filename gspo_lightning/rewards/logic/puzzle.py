"""Reward for all puzzle families: find the final answer, grade it, apply the threshold."""

from __future__ import annotations

from gspo_lightning.core.errors import UserError, did_you_mean
from gspo_lightning.rewards.logic.countdown import Countdown
from gspo_lightning.rewards.logic.family import Family, Grade
from gspo_lightning.rewards.logic.final import final_answer, plain
from gspo_lightning.rewards.logic.knights import Knights
from gspo_lightning.rewards.logic.sudoku import Sudoku
from gspo_lightning.rewards.logic.zebra import Zebra
from gspo_lightning.rewards.reward import Reward
from gspo_lightning.rewards.types import Score

FAMILIES: dict[str, Family] = {family.name: family for family in (Knights(), Zebra(), Countdown(), Sudoku())}
"""Name -> puzzle family."""


class LogicPuzzle(Reward):
    """1 if the final answer solves the puzzle, otherwise 0; or the share of correct cells.

    This package's own parsers read answers: model text is never executed. The final answer must be an answer and
    nothing else: padding it with guesses scores 0. Any text may come before it, and bold, fences, dollars, a box and
    "The answer is" around it are fine. A zebra grid is the last complete JSON object with ``solution`` (ZebraLogic's
    format, arXiv 2502.01100), wherever it is.

    Args:
        family: ``knights``, ``zebra``, ``countdown`` or ``sudoku``; None reads it from each record's column ``family``.
        marker: text before the final answer: a tag such as ``<answer>``, which must be closed, or a text such as
            ``#``; it may occur once. A single ``\\boxed{}`` at the end replaces a missing tag. An empty
            text takes the whole completion. Not used for zebra grids.
        threshold: share of correct cells, in (0, 1], from which an answer is worth 1. Below 1 guessing is rewarded,
            because half of all knights are guessed.
        partial: an answer is worth its share of correct cells (zebra: ZebraLogic's cell accuracy).
        max_characters: longer answers are worth 0 (``model_error``); of a zebra grid the end is read, up to this
            length.

    >>> LogicPuzzle("countdown").score("3*5=15, so <answer>3*5+7</answer>", "3 5 7 = 22").reward
    1.0
    >>> LogicPuzzle("knights", marker="#", partial=True).score("ABC>ABc;#ABc", "AbC").reward
    0.3333333333333333
    """

    finds_answers = True

    def __init__(
        self,
        family: str | None = None,
        marker: str = "<answer>",
        threshold: float = 1.0,
        partial: bool = False,
        max_characters: int = 20_000,
    ) -> None:
        if family is not None and family not in FAMILIES:
            raise UserError("LogicPuzzle.family", f"{family!r} is not a family; {did_you_mean(family, FAMILIES)}")
        if not 0 < threshold <= 1:
            raise UserError("LogicPuzzle.threshold", f"is {threshold}; it must lie in (0, 1]")
        if partial and threshold != 1:
            raise UserError("LogicPuzzle.threshold", "means nothing with partial: true", fix="set one of the two")
        if max_characters < 1:
            raise UserError("LogicPuzzle.max_characters", f"is {max_characters}; it must be at least 1")
        self.family = family
        self.marker = marker
        self.threshold = threshold
        self.partial = partial
        self.max_characters = max_characters

    def required_columns(self) -> tuple[str, ...]:
        """Return ``answer``, and ``family`` if each record names its own."""
        return ("answer",) if self.family is not None else ("answer", "family")

    def score(
        self,
        completion: str,
        answer: object,
        truncated: bool = False,
        family: str = "",
        unfinished_thought: bool = False,
    ) -> Score:
        """Grade the final answer; ``detail`` says why an answer could not be graded."""
        judge = FAMILIES.get(self.family or family)
        if judge is None:
            return Score.missing(f"{family!r} is not a family of puzzles; {did_you_mean(str(family), FAMILIES)}")
        marker = self.marker if judge.marked else ""
        text, problem = final_answer(completion, marker, truncated and judge.marked, unfinished_thought)
        if len(text) > self.max_characters:
            if judge.marked:
                return Score.model_error(f"longer than {self.max_characters} characters")
            text = text[-self.max_characters :]
        try:
            text = plain(text) if judge.marked else text
            grade = judge.grade(text, answer) if not problem else Grade.unread(problem)
        except (ValueError, TypeError, RecursionError) as error:
            return Score.missing(f"the record's answer is not understood: {error}")
        if self.partial:
            return Score(grade.share, detail=grade.problem)
        return Score(float(grade.share >= self.threshold), detail=grade.problem)
