"""The tasks of the two environment examples: disjoint splits, right answers, demonstrations in known shares."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.types import Prompt
from gspo_lightning.data.prompts import CalculatorTask, GuessTask
from gspo_lightning.policy.tiny import character_tokenizer
from gspo_lightning.rollouts.environments import Calculator, GuessNumber, ToolUse

SPLITS = ("cold_start", "train", "held_out")


def test_guesses_of_the_splits_are_all_pairs_once() -> None:
    found = [(r["prompt"], r["answer"]) for s in SPLITS for r in GuessTask(s).records()]  # type: ignore[arg-type]
    pairs = {(f"{low}-{low + 19}?", str(n)) for low in range(10, 80) for n in range(low, low + 20)}
    assert len(found) == 1400
    assert set(found) == pairs


def replies(completion: object, game: GuessNumber, answer: str) -> tuple[list[str], float]:
    """What the real environment says to the policy's part of a demonstration, and what it pays."""
    asyncio.run(game.reset(Prompt(0, "", (1,), {"answer": answer})))
    said, paid = [], 0.0
    assert isinstance(completion, list)
    for message in completion:
        if message["role"] == "assistant":
            messages, reward, _ = asyncio.run(game.step(message["content"]))
            said, paid = said + [m["content"] for m in messages], paid + reward
    return said, paid


@pytest.mark.thorough
def test_guessing_is_demonstrated_as_the_environment_answers() -> None:
    task = GuessTask("cold_start", step=10)
    paid: Counter[tuple[bool, bool]] = Counter()
    answers = [str(r["answer"]) for r in task.records() for _ in range(10)]
    for (prompt, talk), answer in zip(task.demonstrations(), answers, strict=True):
        assert not isinstance(talk, str)
        said, reward = replies(talk, GuessNumber(5), answer)
        heard = [m["content"] for m in talk if m["role"] == "user"]
        assert said[: len(heard)] == heard
        halves = talk[0]["content"] != prompt[:2]
        paid[halves, reward == 1.0] += 1
    total = sum(paid.values())
    assert paid[True, False] == 0  # halving always finds it
    assert paid[True, True] == pytest.approx(0.3 * total)
    assert 0.15 < paid[False, True] / (paid[False, True] + paid[False, False]) < 0.35  # counting finds one in four


def test_calculations_are_right_and_disjoint() -> None:
    sets = {s: CalculatorTask(s, 3000).records() for s in SPLITS}  # type: ignore[arg-type]
    prompts = [str(r["prompt"]) for records in sets.values() for r in records]
    assert len(set(prompts)) == 9000
    for record in sets["train"]:
        assert eval(str(record["prompt"])[:-1], {"__builtins__": {}}) == int(str(record["answer"]))


def test_the_calculator_is_asked_as_it_answers() -> None:
    box, asked = ToolUse({"calculator": Calculator()}, style="line"), 0
    task = CalculatorTask("cold_start", 1000)
    for record, (prompt, talk) in zip(task.records(), task.demonstrations(), strict=True):
        if isinstance(talk, str):
            assert talk == f"#{record['answer']}"
            continue
        asked += 1
        assert [m["role"] for m in talk] == ["assistant", "tool", "assistant"]
        assert talk[0]["content"] == f"?{prompt[:-1]}"
        messages, _, done = asyncio.run(box.step(talk[0]["content"]))
        assert not done
        assert list(messages) == [talk[1]]
        assert asyncio.run(box.step(talk[2]["content"]))[2]
        assert talk[2]["content"] == f"#{record['answer']}"
    assert 250 < asked < 350


def test_the_tiny_tokenizer_knows_every_character() -> None:
    tokenizer = character_tokenizer()
    for task in (GuessTask("cold_start"), CalculatorTask("cold_start", 200)):
        for prompt, talk in task.demonstrations():
            text = prompt + (talk if isinstance(talk, str) else "".join(m["content"] for m in talk))
            assert tokenizer.unk_token_id not in tokenizer(text)["input_ids"]


@pytest.mark.parametrize(
    ("task", "settings"),
    [
        (GuessTask, {"split": "test"}), (GuessTask, {"numbers": 1}), (GuessTask, {"step": 0}),
        (GuessTask, {"guesses": 0}), (GuessTask, {"halving_share": 1.5}), (CalculatorTask, {"split": "test"}),
        (CalculatorTask, {"size": 0}), (CalculatorTask, {"operands": 1}), (CalculatorTask, {"tool_share": -1}),
    ],
)  # fmt: skip
def test_settings_out_of_range_are_refused(task: type, settings: dict[str, object]) -> None:
    with pytest.raises(UserError, match=next(iter(settings))):
        task(**settings)
