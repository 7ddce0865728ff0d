"""Task of configs/smollm2.yaml: arithmetic word problems in English, for a model of 135 million parameters.

"Ben has 7 apples. Mia gives Ben 5 more. How many apples does Ben have now?" has the answer 12. Training and held-out
prompts tell different stories: a model that learns the sentences of one split has not seen those of the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.randomness import stream
from gspo_lightning.data.prompts.prompt_set import PromptSet, Record

Split = Literal["train", "held_out"]
_MOST = 4096
"""Prompts that every story has enough numbers, names and things for."""
_NAMES = ("Ann", "Ben", "Carla", "David", "Emma", "Finn", "Grace", "Hugo", "Ida", "Jack", "Kim", "Leo", "Mia", "Noah")
_THINGS = (
    *("apples", "books", "cards", "coins", "cookies", "eggs"),
    *("marbles", "oranges", "pencils", "shells", "stamps", "stickers"),
)


class _Story(NamedTuple):
    """A template over a name, another name, things and three numbers, and the answer for these numbers."""

    text: str
    answer: Callable[[int, int, int], int]


_STORIES: dict[Split, tuple[_Story, ...]] = {
    "train": (
        _Story(
            "{name} has {a} {things}. {other} gives {name} {b} more. How many {things} does {name} have now?",
            lambda a, b, c: a + b,
        ),
        _Story(
            "{name} has {a} {things} and {other} has {b} {things}. How many {things} do they have together?",
            lambda a, b, c: a + b,
        ),
        _Story(
            "There are {a} {things} in a bag and {b} {things} in a basket. How many {things} are there in total?",
            lambda a, b, c: a + b,
        ),
        _Story(
            "{name} has {ab} {things} and gives {b} of them to {other}. How many {things} does {name} have left?",
            lambda a, b, c: a,
        ),
        _Story(
            "There are {ab} {things} in a jar. {name} takes out {a}. How many {things} are still in the jar?",
            lambda a, b, c: b,
        ),
        _Story(
            "{name} has {ab} {things}. {other} has {a} {things}. How many more {things} does {name} have?",
            lambda a, b, c: b,
        ),
        _Story(
            "There are {b} boxes with {c} {things} in each box. How many {things} are there in all boxes?",
            lambda a, b, c: b * c,
        ),
        _Story(
            "{name} finds {c} {things} every day. How many {things} does {name} find in {b} days?",
            lambda a, b, c: b * c,
        ),
        _Story(
            "{name} shares {bc} {things} equally among {b} friends. How many {things} does each friend get?",
            lambda a, b, c: c,
        ),
    ),
    "held_out": (
        _Story(
            "A shelf holds {a} {things}. {name} puts {b} more on the shelf. How many {things} are on the shelf now?",
            lambda a, b, c: a + b,
        ),
        _Story(
            "{name} saw {a} {things} on Monday and {b} on Tuesday. How many {things} did {name} see on both days?",
            lambda a, b, c: a + b,
        ),
        _Story(
            "{name} packed {ab} {things} for a trip, but {a} were left at home. How many {things} went on the trip?",
            lambda a, b, c: b,
        ),
        _Story(
            "A shop had {ab} {things} in the morning and sold {b}. How many {things} were not sold?", lambda a, b, c: a
        ),
        _Story("{b} children bring {c} {things} each. How many {things} do the children bring?", lambda a, b, c: b * c),
        _Story("{name} puts {bc} {things} into {b} equal piles. How many {things} are in a pile?", lambda a, b, c: c),
    ),
}


class WordProblems(PromptSet):
    """Arithmetic word problems of one step, in English (``configs/smollm2.yaml``).

    The splits tell different stories, so no prompt of one occurs in the other, whatever the seed.

    Args:
        split: ``train`` or ``held_out``.
        size: number of prompts, 1 to 4,096.
        seed: of the stories and numbers drawn.
        largest: the largest of the numbers a sum begins with, 5 to 100.
        instruction: text after every problem.
    """

    def __init__(
        self,
        split: Split = "train",
        size: int = 4096,
        seed: int = 0,
        largest: int = 12,
        instruction: str = "",
    ) -> None:
        if split not in _STORIES:
            raise UserError("WordProblems.split", f"is {split!r}; it must be one of {', '.join(_STORIES)}")
        if not 1 <= size <= _MOST:
            raise UserError("WordProblems.size", f"is {size}; it must lie in 1 to {_MOST}")
        if not 5 <= largest <= 100:
            raise UserError("WordProblems.largest", f"is {largest}; it must lie in 5 to 100")
        self.split = split
        self.size = size
        self.seed = seed
        self.largest = largest
        self.instruction = instruction

    def records(self) -> Sequence[Record]:
        """Return records with ``prompt``, ``answer`` and ``story``, the number of the story; the stories take turns."""
        stories = _STORIES[self.split]
        records: dict[str, Record] = {}
        counter = 0
        while len(records) < self.size:
            number = len(records) % len(stories)
            text, answer = _problem(stories[number], stream(self.seed, 0, counter), self.largest)
            counter += 1
            if text not in records:
                prompt = f"{text}{self.instruction}"
                records[text] = {"prompt": prompt, "answer": str(answer), "story": f"{self.split}_{number}"}
        return list(records.values())


def _problem(story: _Story, draw: int, largest: int) -> tuple[str, int]:
    """Return the text of a problem and its answer."""
    name = _NAMES[stream(draw, 0) % len(_NAMES)]
    others = [other for other in _NAMES if other != name]
    a = 2 + stream(draw, 1) % (largest - 1)
    b = 2 + stream(draw, 2) % 8
    c = 2 + stream(draw, 3) % 8
    text = story.text.format(
        name=name,
        other=others[stream(draw, 4) % len(others)],
        things=_THINGS[stream(draw, 5) % len(_THINGS)],
        a=a, b=b, c=c, ab=a + b, bc=b * c,
    )  # fmt: skip
    return text, story.answer(a, b, c)
