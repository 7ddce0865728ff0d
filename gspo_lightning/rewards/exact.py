"""Exact string comparison: the strictest and the fastest reward."""

from __future__ import annotations

from gspo_lightning.core.thinking import UNFINISHED
from gspo_lightning.rewards.reward import Reward
from gspo_lightning.rewards.types import Score


class ExactMatch(Reward):
    """1 if the text after the marker equals ``answer`` exactly, otherwise 0; a whole float, 42.0, is also ``42``.

    Args:
        marker: text before the final answer; an empty text compares the whole completion, stripped of white space.
            (Not null: in YAML, the text ``#`` is a comment and would be read as null if null were allowed.)
        exactly_one: refuse completions with more than one marker: otherwise the last one counts, which rewards
            guessing.
        require_terminated: refuse completions that were cut at the response limit.

    >>> ExactMatch().score("7+5=2;2*3=6;6-4=2;#2", False, "2").reward
    1.0
    >>> ExactMatch().score("#1#2", False, "2").detail
    '2 markers'
    """

    finds_answers = True

    def __init__(self, marker: str = "#", exactly_one: bool = True, require_terminated: bool = True) -> None:
        self.marker = marker
        self.exactly_one = exactly_one
        self.require_terminated = require_terminated

    def score(self, completion: str, truncated: bool, answer: object, unfinished_thought: bool = False) -> Score:
        """Compare the answer; ``detail`` says why an answer could not be compared."""
        if self.require_terminated and truncated:
            return Score(0.0, detail="truncated")
        if unfinished_thought:
            return Score(0.0, detail=UNFINISHED)
        if not self.marker:
            return Score(float(completion.strip() in _texts(answer)))
        count = completion.count(self.marker)
        if count == 0:
            return Score(0.0, detail="no marker")
        if count > 1 and self.exactly_one:
            return Score(0.0, detail=f"{count} markers")
        return Score(float(completion.rsplit(self.marker, 1)[1] in _texts(answer)))


def _texts(answer: object) -> tuple[str, ...]:
    """Return the texts of an answer; tables write integers as floats if a cell of their column is empty.

    >>> _texts("42"), _texts(42.0), _texts(0.5)
    (('42',), ('42.0', '42'), ('0.5',))
    """
    if isinstance(answer, float) and answer.is_integer():
        return str(answer), str(int(answer))
    return (str(answer),)
