"""Reward for following instructions that a program can verify."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from gspo_lightning.errors import UserError
from gspo_lightning.rewards.base import Reward
from gspo_lightning.rewards.instructions.kinds import BadInstructionError, Instruction, read_instructions
from gspo_lightning.rewards.instructions.text import check_installed, load_languages
from gspo_lightning.rewards.math.text import after_thinking
from gspo_lightning.rewards.types import Score

__all__ = ["IFVerifier"]


class IFVerifier(Reward):
    """1 if a completion follows all of its record's instructions, or the share that it follows.

    The kinds are IFEval's 25 (arXiv 2311.07911), by their public ids and arguments: the columns ``instruction_id_list``
    and ``kwargs`` of the data set, unchanged. The text after ``</think>`` is checked.

    Args:
        scoring: ``all_or_nothing`` (IFEval's accuracy by prompt), or ``fraction`` of the instructions.
        loose: a text that follows an instruction without its first line, its last line, both, or its asterisks
            follows it (IFEval's loose accuracy): an introduction such as "Sure, here it is:" is fine.
        max_characters: longer completions are worth 0 (``model_error``).

    Raises:
        UserError: an invalid setting, or py3langid is not installed.

    >>> verifier = IFVerifier()
    >>> verifier.score("Yes. No comma here.", ["punctuation:no_comma"], [{}]).reward
    1.0
    >>> verifier.score("Yes, one.", ["punctuation:no_comma"], [{}]).detail
    'punctuation:no_comma'
    """

    no_answer = "the thinking has no end|longer than .*"

    def __init__(
        self,
        scoring: Literal["all_or_nothing", "fraction"] = "all_or_nothing",
        loose: bool = False,
        max_characters: int = 20_000,
    ) -> None:
        if scoring not in ("all_or_nothing", "fraction"):
            raise UserError("IFVerifier.scoring", f"is {scoring!r}; it must be all_or_nothing or fraction")
        if max_characters < 1:
            raise UserError("IFVerifier.max_characters", f"is {max_characters}; it must be at least 1")
        check_installed()
        self.scoring, self.loose, self.max_characters = scoring, loose, max_characters

    def prepare(self) -> None:
        """Load the language detection model."""
        load_languages()

    def score(self, completion: str, instruction_id_list: object, kwargs: object) -> Score:
        """Check all instructions; ``detail`` lists the kinds that were not followed."""
        try:
            instructions = read_instructions(instruction_id_list, kwargs)
        except BadInstructionError as error:
            return Score.missing(f"the record's instructions are not understood: {error}")
        text = after_thinking(completion)
        if text is None:
            return Score.model_error("the thinking has no end")
        if len(text) > self.max_characters:
            return Score.model_error(f"longer than {self.max_characters} characters")
        broken = [one.id for one in instructions if not self._followed(one, text)]
        share = 1 - len(broken) / len(instructions)
        return Score(share if self.scoring == "fraction" else float(not broken), detail=", ".join(broken))

    def _followed(self, instruction: Instruction, text: str) -> bool:
        return any(instruction.followed(form) for form in (_forms(text) if self.loose else (text,)))


def _forms(text: str) -> Iterator[str]:
    """Return IFEval's eight forms of a text for loose scoring.

    >>> list(_forms("Sure:\\n*a*"))
    ['Sure:\\n*a*', 'Sure:\\na', '*a*', 'a', 'Sure:', 'Sure:', '', '']
    """
    lines = text.split("\n")
    for kept in (lines, lines[1:], lines[:-1], lines[1:-1]):
        form = "\n".join(kept).strip()
        yield form if kept is not lines else text
        yield form.replace("*", "")
