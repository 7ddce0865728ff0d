"""The quickstart's task: three disjoint splits, right answers, demonstrations of which a known share shows steps."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from gspo_lightning.core.errors import UserError
from gspo_lightning.data.prompts import ChainTask
from gspo_lightning.policy.tiny import character_tokenizer

SPLITS = ("cold_start", "train", "held_out")
SHARE = {"cold_start": 0.4, "train": 0.5, "held_out": 0.1}


def largest(split: str, operands: int) -> int:
    return int(10**operands * 3 ** (operands - 1) * SHARE[split]) // 2


def prompts(split: str, size: int, operands: int, seed: int = 0) -> list[str]:
    return [str(r["prompt"]) for r in ChainTask(split, size, operands, seed).records()]  # type: ignore[arg-type]


@pytest.mark.parametrize("operands", [2, 3])
def test_splits_are_disjoint_at_their_largest_size_and_across_seeds(operands: int) -> None:
    sets = {
        (split, seed): set(prompts(split, largest(split, operands), operands, seed))
        for split in SPLITS
        for seed in (0, 1)
    }
    for (split, seed), found in sets.items():
        assert len(found) == largest(split, operands)  # no prompt twice
        others = [s for (other, _), s in sets.items() if other != split]
        assert not found & set().union(*others), (split, seed)


def test_large_sets_of_the_default_task_are_disjoint() -> None:
    cold_start, train, held_out = (set(prompts(split, 6_000, 4)) for split in SPLITS)
    assert len(cold_start | train | held_out) == 18_000


@pytest.mark.parametrize("operands", [2, 4, 6])
def test_prompts_have_the_shape_the_task_says(operands: int) -> None:
    known = character_tokenizer()
    for prompt in prompts("train", 30, operands):
        assert re.fullmatch(rf"\d(?:[-+*]\d){{{operands - 1}}}:", prompt)
        assert known.unk_token_id not in known(prompt)["input_ids"]


def test_operators_and_digits_are_all_used_evenly() -> None:
    text = "".join(prompts("train", 5000, 4))
    for characters, total in (("0123456789", 20_000), ("+-*", 15_000)):
        expected = total / len(characters)
        statistic = sum((text.count(c) - expected) ** 2 / expected for c in characters)
        assert statistic < 40  # a hash split of unequal draws would be far beyond (99.9%: 27.9 and 13.8)


def evaluate(prompt: str) -> tuple[list[int], int]:
    """Left to right, modulo 10, by Python's own arithmetic on nested brackets; all values on the way."""
    parts = re.findall(r"[-+*]?\d", prompt)
    values, expression = [int(parts[0])], parts[0]
    for part in parts[1:]:
        expression = f"({expression}){part}"
        values.append(eval(expression) % 10)
    return values, values[-1]


@pytest.mark.parametrize("operands", [2, 4, 6])
def test_answers_and_steps_are_right(operands: int) -> None:
    for record in ChainTask("train", 70, operands).records():
        values, answer = evaluate(str(record["prompt"]))
        assert record["answer"] == str(answer)
        steps = str(record["steps"]).rstrip(";").split(";")
        assert len(steps) == operands - 1
        for before, after, step in zip(values, values[1:], steps, strict=False):
            left, right = step.split("=")
            assert int(left[0]) == before
            assert eval(left) % 10 == after == int(right)
        assert "".join(part.split("=")[0][1:] for part in steps) == str(record["prompt"])[1:-1]


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_demonstrations_are_correct_and_the_share_shows_its_steps(share: float) -> None:
    task = ChainTask("cold_start", 2000, step_share=share)
    pairs, records = task.demonstrations(), task.records()
    assert [prompt for prompt, _ in pairs] == [r["prompt"] for r in records]
    shown = 0
    for (_, completion), record in zip(pairs, records, strict=True):
        assert completion in (f"#{record['answer']}", f"{record['steps']}#{record['answer']}")
        shown += len(completion) > 2
    assert abs(shown - 2000 * share) <= 3.3 * (2000 * share * (1 - share)) ** 0.5


def test_records_never_change() -> None:
    task = ChainTask("train", 50)
    assert task.records() == task.records() == ChainTask("train", 50).records()
    assert task.records()[:20] == ChainTask("train", 20).records()  # a larger set begins with the smaller one
    assert task.records() != ChainTask("train", 50, seed=1).records()
    assert task.records()[0] == {"prompt": "4+4*9+7:", "answer": "9", "steps": "4+4=8;8*9=2;2+7=9;"}


@pytest.mark.thorough("128")
@pytest.mark.parametrize("operands", [7, 12, 13, 34, 128])
def test_long_chains_use_every_digit_and_operator_in_every_place(operands: int) -> None:
    prompts = [str(r["prompt"]) for r in ChainTask("train", 2000, operands=operands).records()]
    assert {len(p) for p in prompts} == {2 * operands}
    for place in range(2 * operands - 1):
        seen = Counter(p[place] for p in prompts)
        kinds = 10 if place % 2 == 0 else 3
        assert len(seen) == kinds
        spread = (2000 / kinds * (1 - 1 / kinds)) ** 0.5
        assert all(abs(count - 2000 / kinds) < 5 * spread for count in seen.values()), (place, seen)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"split": "test"}, "ChainTask.split: is 'test'; it must be one of cold_start, train, held_out"),
        ({"operands": 1}, "ChainTask.operands: is 1; it must lie in 2 to 128"),
        ({"operands": 129}, "ChainTask.operands: is 129"),
        ({"size": 0}, "ChainTask.size: is 0; 4 operands allow 1 to 67500 in train"),
        ({"operands": 2, "size": 76}, "2 operands allow 1 to 75 in train"),
        ({"step_share": 1.5}, r"ChainTask.step_share: is 1.5; it must lie in [0, 1]"),
        ({"step_share": -0.1}, "ChainTask.step_share: is -0.1"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(UserError) as caught:
        ChainTask(**settings)  # type: ignore[arg-type]
    assert message in str(caught.value)
