"""``ReasoningGym`` as prompts: the same items wherever and whenever they are made, and disjoint splits."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("reasoning_gym")

from gspo_lightning.core.errors import UserError
from gspo_lightning.data.prompts import ReasoningGym

FAMILIES = ["chain_sum", "word_ladder", "list_functions"]
"""The second depends on the order of a set, the third on a global generator."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("items"))


@pytest.mark.thorough
def test_items_are_made_once(folder: str) -> None:
    task = ReasoningGym(FAMILIES, size=9, folder=folder)
    records = task.records()
    assert [record["family"] for record in records] == FAMILIES * 3
    assert len({record["prompt"] for record in records}) == 9
    assert all(str(r["prompt"]).endswith("Give the final answer between <answer> and </answer>.") for r in records)
    assert [a for _, a in task.demonstrations()] == [f"<answer>{r['answer']}</answer>" for r in records]
    (kept,) = Path(folder).glob("*.jsonl")
    written = kept.read_text()
    kept.write_text(written.replace("chain_sum", "kept"))
    assert ReasoningGym(FAMILIES, size=9, folder=folder).records()[0]["family"] == "kept"
    kept.write_text(written)


@pytest.mark.long
def test_another_process_makes_the_same_items(folder: str, tmp_path: Path) -> None:
    first, second = (ReasoningGym(FAMILIES, size=30, folder=place).records() for place in (folder, str(tmp_path)))
    assert first == second


@pytest.mark.long
def test_unknown_reasoning_gym_family_is_refused_with_the_nearest_name(folder: str) -> None:
    with pytest.raises(
        UserError, match=r"ReasoningGym: 'chian_sum' is not a family of reasoning-gym; did you mean chain"
    ):
        ReasoningGym(["chian_sum"], folder=folder).records()


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"families": ["countdown"]}, "countdown is refused: its scorer executes the answer as Python"),
        ({"families": []}, "ReasoningGym.families: is empty"),
        ({"split": "test"}, "ReasoningGym.split: is 'test'"),
        ({"size": 0}, "ReasoningGym.size: is 0"),
        ({"configs": {"maze": {}}}, "'maze' is not among families"),
    ],
)
def test_settings_that_cannot_work_are_refused(chosen: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        ReasoningGym(**{"families": ["chain_sum"], **chosen})


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"ReasoningGym.folder: .*file.* cannot be used"):
        ReasoningGym(["chain_sum"], folder=str(tmp_path / "file" / "below")).records()


@pytest.mark.thorough
def test_reasoning_gym_is_not_imported_in_this_process(folder: str) -> None:
    before = {name for name in sys.modules if name.startswith("reasoning_gym")}
    json.dumps(ReasoningGym(FAMILIES, size=9, folder=folder).records())
    assert {name for name in sys.modules if name.startswith("reasoning_gym")} == before
