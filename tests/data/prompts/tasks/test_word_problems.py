"""Word problems: answers by formulas written a second time, disjoint stories, distinct prompts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

import pytest

from gspo_lightning.core.errors import UserError
from gspo_lightning.data.prompts import WordProblems

SOLUTIONS: dict[str, Callable[..., float]] = {
    "gives .* more": lambda x, y: x + y,
    "together": lambda x, y: x + y,
    "in total": lambda x, y: x + y,
    "gives .* of them": lambda x, y: x - y,
    "takes out": lambda x, y: x - y,
    "How many more": lambda x, y: x - y,
    "in each box": lambda x, y: x * y,
    "every day": lambda x, y: x * y,
    "equally among": lambda x, y: x / y,
    "on the shelf": lambda x, y: x + y,
    "Tuesday": lambda x, y: x + y,
    "left at home": lambda x, y: x - y,
    "not sold": lambda x, y: x - y,
    "children bring": lambda x, y: x * y,
    "equal piles": lambda x, y: x / y,
}
"""Words of a story -> its answer for the numbers in the order of its text."""


def solved(prompt: str) -> float:
    found = [solution for words, solution in SOLUTIONS.items() if re.search(words, prompt)]
    assert len(found) == 1, prompt
    return found[0](*map(int, re.findall(r"\d+", prompt)))


def template(prompt: str) -> str:
    """The problem without what changes: names, things and numbers."""
    things = "apples|books|cards|coins|cookies|eggs|marbles|oranges|pencils|shells|stamps|stickers"
    names = "Ann|Ben|Carla|David|Emma|Finn|Grace|Hugo|Ida|Jack|Kim|Leo|Mia|Noah"
    return re.sub(rf"\b({things}|{names}|\d+)\b", "_", prompt)


@pytest.mark.parametrize("split", ["train", "held_out"])
@pytest.mark.parametrize("largest", [5, 20, 100])
def test_answers_are_those_of_formulas_written_a_second_time(split: str, largest: int) -> None:
    records = WordProblems(split, 240, largest=largest).records()  # type: ignore[arg-type]
    for record in records:
        assert solved(str(record["prompt"])) == int(record["answer"]) > 0, record
    assert len({solved(str(r["prompt"])) for r in records}) > 15


def test_every_story_is_told_and_no_story_of_one_split_in_the_other() -> None:
    kinds = {}
    for split, count in (("train", 9), ("held_out", 6)):
        records = WordProblems(split, 954).records()  # type: ignore[arg-type]
        kinds[split] = {template(str(r["prompt"])) for r in records}
        assert len(kinds[split]) == count == len({r["story"] for r in records})
        assert set(Counter(r["story"] for r in records).values()) == {954 // count}
    assert not kinds["train"] & kinds["held_out"]


def test_prompts_are_distinct_and_never_change() -> None:
    task = WordProblems("train", 4096)
    assert len({r["prompt"] for r in task.records()}) == 4096
    assert WordProblems("train", 50).records() == task.records()[:50]  # a larger set begins with the smaller one
    assert WordProblems("train", 50, seed=1).records() != task.records()[:50]


def test_an_instruction_follows_the_problem() -> None:
    plain = WordProblems(size=1).records()[0]["prompt"]
    assert re.fullmatch(r"[A-Z].*\?", plain)
    assert WordProblems(size=1, instruction=" Think.").records()[0]["prompt"] == f"{plain} Think."


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"split": "cold_start"}, "WordProblems.split: is 'cold_start'; it must be one of train, held_out"),
        ({"size": 0}, "WordProblems.size: is 0; it must lie in 1 to 4096"),
        ({"size": 4097}, "WordProblems.size: is 4097"),
        ({"largest": 4}, "WordProblems.largest: is 4; it must lie in 5 to 100"),
        ({"largest": 101}, "WordProblems.largest: is 101"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(UserError) as caught:
        WordProblems(**settings)  # type: ignore[arg-type]
    assert message in str(caught.value)
