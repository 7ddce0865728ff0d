"""Generated puzzles as prompts: splits disjoint by meaning, records that never change, right demonstrations."""

from __future__ import annotations

import re

import pytest

from gspo_lightning.core.errors import UserError
from gspo_lightning.data.prompts import LogicTask
from gspo_lightning.policy.tiny import character_tokenizer
from gspo_lightning.rewards import LogicPuzzle
from gspo_lightning.rewards.logic import FAMILIES

SPLITS = ("cold_start", "train", "held_out")


def meanings(split: str, seed: int) -> set[tuple[frozenset[str], ...]]:
    """What two-person puzzles say: for each person the assignments under which the claim is true."""
    found = set()
    for record in LogicTask("knights", split, 50, 1, seed, style="compact").records():  # type: ignore[arg-type]
        claims = re.findall(r"[AB]:([ABab])([*+=])([ABab])", record["prompt"])
        table = []
        for left, operator, right in claims:
            true = set()
            for who in ("AB", "Ab", "aB", "ab"):
                a, b = left in who, right in who
                if (a and b) if operator == "*" else (a or b) if operator == "+" else a == b:
                    true.add(who)
            table.append(frozenset(true))
        assert len(table) == 2
        found.add(tuple(table))
    return found


def test_splits_share_no_puzzle_however_it_is_worded() -> None:
    found = {(split, seed): meanings(split, seed) for split in SPLITS for seed in (0, 1)}
    for (split, _), puzzles in found.items():
        assert puzzles
        for (other, _), others in found.items():
            assert split == other or not puzzles & others


@pytest.mark.thorough("zebra")
@pytest.mark.parametrize("family", FAMILIES)
def test_splits_and_seeds_differ(family: str) -> None:
    sets = {s: {r["answer"] + r["prompt"] for r in LogicTask(family, s, 40).records()} for s in SPLITS}  # type: ignore[arg-type]
    assert len(set().union(*sets.values())) == 120
    assert LogicTask(family, size=5).records() != LogicTask(family, size=5, seed=1).records()
    assert LogicTask(family, size=9).records()[:5] == LogicTask(family, size=5).records()


def test_records_never_change() -> None:
    knights = LogicTask("knights", size=1, style="compact").records()[0]
    assert knights == {"prompt": "A:a*B;B:c=B;C:C+A?", "answer": "abc", "family": "knights"}
    assert LogicTask("countdown", size=1, difficulty=1, style="compact").records()[0]["prompt"] == "8 9 9=144?"
    sudoku = LogicTask("sudoku", size=1, difficulty=3, style="compact").records()[0]
    assert sudoku["answer"] == "4..2/..14/1..3/.4.1 = 4132/2314/1243/3421"


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("style", ["text", "compact"])
def test_demonstrations_are_paid_in_full(family: str, style: str) -> None:
    if (family, style) == ("zebra", "compact"):
        pytest.skip("zebra grids have no notation")
    task = LogicTask(family, "cold_start", 40, style=style, step_share=0.5)  # type: ignore[arg-type]
    reward = LogicPuzzle(marker="#" if style == "compact" else "<answer>")
    shown = 0
    for record, (prompt, completion) in zip(task.records(), task.demonstrations(), strict=True):
        assert prompt == record["prompt"]
        assert reward.score(completion, record["answer"], family=record["family"]).reward == 1.0
        shown += ">" in completion.partition("#")[0]
    assert (8 <= shown <= 32) if (family, style) == ("knights", "compact") else style == "text" or shown == 0


@pytest.mark.parametrize(("family", "difficulty"), [("knights", 2), ("countdown", 5), ("sudoku", 5)])
def test_the_notation_fits_the_tiny_models(family: str, difficulty: int) -> None:
    tokenizer = character_tokenizer()
    task = LogicTask(family, size=50, difficulty=difficulty, style="compact", step_share=1.0)
    for prompt, completion in task.demonstrations():
        assert tokenizer.unk_token_id not in tokenizer(prompt + completion)["input_ids"]


def test_a_family_that_is_used_up_says_so() -> None:
    with pytest.raises(UserError, match=r"LogicTask.size: is 5000, but only \d+ puzzles of knights with difficulty 1"):
        LogicTask("knights", size=5000, difficulty=1).records()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"family": "knihts"}, "did you mean knights"),
        ({"split": "test"}, "LogicTask.split: is 'test'; it must be one of cold_start, train, held_out"),
        ({"size": 0}, "LogicTask.size: is 0"),
        ({"difficulty": 6}, "LogicTask.difficulty: is 6; it must lie in 1 to 5"),
        ({"style": "long"}, "LogicTask.style"),
        ({"family": "zebra", "style": "compact"}, "no compact notation"),
        ({"step_share": 2.0}, "LogicTask.step_share"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(UserError) as caught:
        LogicTask(**settings)  # type: ignore[arg-type]
    assert message in str(caught.value)
