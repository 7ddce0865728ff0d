"""The programming task: disjoint splits, right tests, demonstrations of which a known share writes the brackets."""

from __future__ import annotations

import re
from typing import Any

import pytest

from gspo_lightning.core.errors import UserError
from gspo_lightning.data.prompts import CodeTask
from gspo_lightning.policy.tiny import character_tokenizer
from gspo_lightning.rewards import CodeExecutor

SPLITS = ("cold_start", "train", "held_out")


def by_stack(prompt: str, x: int, y: int) -> int:
    """Prefix notation read from its end with a stack, another way than the task's."""
    stack: list[int] = []
    for character in reversed(prompt[:-1]):
        if character in "+-*":
            left, right = stack.pop(), stack.pop()
            stack.append({"+": left + right, "-": left - right, "*": left * right}[character])
        else:
            stack.append({"x": x, "y": y}[character] if character in "xy" else int(character))
    (value,) = stack
    return value


def test_splits_are_disjoint() -> None:
    found = {split: {str(r["prompt"]) for r in CodeTask(split, 3000).records()} for split in SPLITS}  # type: ignore[arg-type]
    assert all(len(prompts) == 3000 for prompts in found.values())
    assert len(set.union(*found.values())) == 9000


def test_tests_are_right_and_cannot_be_read_off_the_prompt() -> None:
    for record in CodeTask("train", 200, tests=4).records():
        prompt, answer = str(record["prompt"]), record["answer"]
        assert re.fullmatch(r"[-*](?:[-+*][xy1-9]{2}){2}:", prompt)
        assert len(answer["tests"]) == 4
        for test in answer["tests"]:
            x, y = test["input"]
            assert 2 <= x <= 9
            assert 2 <= y <= 9
            assert test["output"] == by_stack(prompt, x, y)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_demonstrations_write_brackets_in_a_known_share_and_those_are_right(share: float) -> None:
    task = CodeTask("cold_start", 1000, bracket_share=share)
    pairs, records = task.demonstrations(), task.records()
    assert [prompt for prompt, _ in pairs] == [r["prompt"] for r in records]
    bracketed = [(text, r["answer"]["tests"]) for (_, text), r in zip(pairs, records, strict=True) if "(" in text]
    assert abs(len(bracketed) - 1000 * share) <= 3.3 * (1000 * share * (1 - share)) ** 0.5
    for text, tests in bracketed:
        assert all(eval(text, {"x": t["input"][0], "y": t["input"][1]}) == t["output"] for t in tests)


def test_every_character_is_known_to_the_tiny_model() -> None:
    known = character_tokenizer()
    text = "".join(prompt + completion for prompt, completion in CodeTask("cold_start", 200).demonstrations())
    assert known.unk_token_id not in known(text)["input_ids"]


def test_the_reward_pays_the_right_program_and_not_the_one_without_brackets() -> None:
    record: Any = next(r for r in CodeTask("train", 50).records() if r["prompt"].startswith("*-"))
    outer, first, a, b, second, c, d = tuple(record["prompt"][:7])
    reward = CodeExecutor("all_or_nothing")
    assert reward.score(f"({a}{first}{b}){outer}({c}{second}{d})", record["answer"]).reward == 1.0
    assert reward.score(f"{a}{first}{b}{outer}{c}{second}{d}", record["answer"]).reward == 0.0
    assert reward.score("x" * 20, record["answer"]).status == "model_error"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"split": "test"}, "CodeTask.split"),
        ({"size": 0}, "CodeTask.size"),
        ({"split": "held_out", "size": 100_000}, "CodeTask.size"),
        ({"tests": 0}, "CodeTask.tests"),
        ({"bracket_share": 2.0}, "CodeTask.bracket_share"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        CodeTask(**settings)


def test_records_never_change() -> None:
    assert CodeTask("train", 50).records() == CodeTask("train", 60).records()[:50]
    assert CodeTask("train", 1).records()[0]["prompt"] == "**y5*57:"
