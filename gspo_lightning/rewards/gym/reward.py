"""Reward for reasoning-gym's families."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gspo_lightning.core.errors import UserError
from gspo_lightning.rewards.gym.families import REFUSED, check_installed
from gspo_lightning.rewards.logic.final import final_answer
from gspo_lightning.rewards.reward import Reward
from gspo_lightning.rewards.types import Score

if TYPE_CHECKING:
    from gspo_lightning.rewards.gym.items import Source


class ReasoningGym(Reward):
    """1 if the final answer to an item of reasoning-gym is right, otherwise 0; for the prompt set ``ReasoningGym``.

    The families' own scorers run in the reward workers. Partial credit does not count, because it accepts an answer in
    a longer text. Nine families whose scorers would execute the answer are refused, and so are those whose stored
    answers are not accepted (docs/rewards.md).

    Args:
        marker: text before the final answer, as of ``LogicPuzzle``: a tag, or a text such as ``#``.
        max_characters: longer answers are worth 0 (``model_error``).

    Raises:
        UserError: reasoning-gym is not installed in the tested version, or a setting is out of its range.
    """

    finds_answers = True
    deadline_s = 10.0  # some families load data for seconds at their first item

    def __init__(self, marker: str = "<answer>", max_characters: int = 20_000) -> None:
        if max_characters < 1:
            raise UserError("ReasoningGym.max_characters", f"is {max_characters}; it must be at least 1")
        check_installed()
        self.marker = marker
        self.max_characters = max_characters
        self._sources: dict[str, Source] = {}

    def prepare(self) -> None:
        """Import reasoning-gym."""
        from gspo_lightning.rewards.gym import items  # noqa: F401

    def score(
        self,
        completion: str,
        family: str,
        entry: str,
        config: dict[str, Any] | None = None,
        truncated: bool = False,
        unfinished_thought: bool = False,
    ) -> Score:
        """Score the final answer; a record whose own answer is not accepted is *missing*."""
        from gspo_lightning.rewards.gym.items import graded, open_source, read_entry

        if family in REFUSED:
            return Score.missing(f"{family} is refused: {REFUSED[family]}")
        try:
            key = f"{family} {config or {}}"
            if key not in self._sources:
                self._sources[key] = open_source(family, 0, 1, config or {})
            source = self._sources[key]
            item = read_entry(entry)
        except ValueError as error:
            return Score.missing(str(error))
        text, problem = final_answer(completion, self.marker, truncated, unfinished_thought)
        if problem:
            return Score(0.0, detail=problem)
        if len(text) > self.max_characters:
            return Score.model_error(f"longer than {self.max_characters} characters")
        if graded(source, family, text, item):
            return Score(1.0)
        if not graded(source, family, str(item["answer"]), item):
            return Score.missing(f"the record's own answer is not paid by the scorer of {family}")
        return Score(0.0)
