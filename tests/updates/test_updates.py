"""Every kind of update is the update of float64, but for the rounding of its precision, or is refused by name."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from tests import ROOT
from tests.updates.cells import CELLS, OBJECTIVES, REFUSALS, Cell, combinations, pairs, refusal
from tests.updates.measure import Error, errors, measured
from tests.updates.runs_of_cells import Outcome, fitted, refused_by
from tests.updates.table import PAGE, listed, row, written

PLAIN = Cell("GRPO", "AdamW", "float32", "one process", "all", "no critic", "dense")
IN_SUITE = {
    "GSPO, AdamW, float32, one process, all, no critic, dense",
    "LUSPO, 8-bit, float32, one process, QLoRA, no critic, MoE",
}
"""The others take ranks, two iterations, or much the same."""
CLOSE = {"float32": 0.1, "bf16-mixed": 0.7, "16-mixed": 0.2}
"""A bound above these would hide mistakes. In float32 only Muon, which iterates in bfloat16, is not within 1e-3."""
LONGER = [cell.id for cell in CELLS if cell.id not in IN_SUITE]


def test_the_list_covers_every_pair_that_trains() -> None:
    covered = set().union(*(pairs(cell.levels) for cell in CELLS))
    assert set().union(*map(pairs, combinations())) == covered
    assert {cell.objective for cell in CELLS} == set(OBJECTIVES)
    assert not [cell.id for cell in CELLS if refusal(cell.levels)]


@pytest.mark.thorough(*LONGER)
@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.id)
def test_an_update_is_the_update_of_float64(cell: Cell, tmp_path: Path) -> None:
    for error in measured(cell, tmp_path / "cell"):
        assert error.error <= error.bound, error
        assert error.bound - error.crossings < CLOSE[cell.precision], error


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """Updates of a plain run, which mistakes are tried on."""
    return fitted(PLAIN, tmp_path_factory.mktemp("plain") / "cell")


def wrong(measurements: list[Error]) -> list[str]:
    return [error.name for error in measurements if error.error > error.bound]


@pytest.mark.parametrize(
    ("cell", "steps"),
    {
        "another denominator": (dataclasses.replace(PLAIN, objective="PPO"), ["policy 1", "policy 2"]),
        "another ratio": (dataclasses.replace(PLAIN, objective="GSPOToken"), ["policy 2"]),  # of 1 in the first
        "moments of 8 bits": (dataclasses.replace(PLAIN, optimizer="8-bit"), ["policy 2"]),  # the first begins at 0
        "another rule": (dataclasses.replace(PLAIN, optimizer="SGD"), ["policy 1", "policy 2"]),
        "the same": (PLAIN, []),
    }.values(),
    ids=["denominator", "ratio", "8-bit", "SGD", "itself"],
)
def test_the_step_of_another_cell_is_no_rounding(cell: Cell, steps: list[str], plain: Outcome) -> None:
    assert wrong(errors(cell, plain)) == steps


@pytest.mark.parametrize("share", [1e-3, 1e-2])
def test_a_step_that_decay_lengthens_is_no_rounding(share: float, plain: Outcome) -> None:
    """AdamW's own decay of .01 moves these weights by some thousandths of a step."""
    moved = [plain.weights[0]]
    for before, after in zip(plain.weights, plain.weights[1:], strict=False):
        moved.append({name: weight + share * (weight - before[name]) for name, weight in after.items()})
    assert "policy 1" in wrong(errors(PLAIN, dataclasses.replace(plain, weights=moved)))


@pytest.mark.thorough
def test_ties_of_experts_explain_no_other_update(tmp_path: Path) -> None:
    """Another expert for a token with two equal ones moves a step by hundredths; which tokens have them depends on the
    processor. What no choice of an expert does stays an error."""
    cell = of(optimizer="SGD", precision="16-mixed", weights="LoRA", model="MoE")
    outcome = fitted(cell, tmp_path / "cell")
    assert wrong(errors(cell, outcome)) == []
    assert wrong(errors(dataclasses.replace(cell, objective="PPO"), outcome)) == ["policy 1", "policy 2"]
    assert wrong(errors(dataclasses.replace(cell, optimizer="AdamW"), outcome)) == ["policy 1", "policy 2"]


def of(**levels: str) -> Cell:
    return dataclasses.replace(PLAIN, **levels)


REFUSED: dict[str, tuple[Cell, int]] = {
    "packed weights on shards": (of(weights="QLoRA", strategy="fsdp2"), 1),
    "8-bit moments of shards": (of(optimizer="8-bit", strategy="fsdp2"), 1),
    "Muon on flat shards": (of(optimizer="Muon", weights="LoRA", strategy="fsdp"), 1),
    "Muon on vectors": (of(optimizer="Muon"), 1),
    "float16 on shards": (of(precision="16-mixed", strategy="fsdp2"), 1),
    "float16 with a critic": (of(precision="16-mixed", critic="critic"), 1),
    "experts of a dense model": (of(strategy="ep"), 2),
    "routers over cut rows": (of(strategy="cp", model="MoE R2"), 2),
}
"""On one rank where the refusal does not depend on their number."""


@pytest.mark.thorough(*sorted(REFUSALS.keys() - {"Muon on vectors", "packed weights on shards"}))
@pytest.mark.parametrize("name", REFUSALS)
def test_a_pair_that_cannot_train_is_refused_by_name(name: str, tmp_path: Path) -> None:
    cell, ranks = REFUSED[name]
    assert refusal(cell.levels) == name
    output = refused_by(cell, tmp_path / "cell", ranks=ranks)
    assert f"{REFUSALS[name].field}: " in output
    assert REFUSALS[name].words in output


@pytest.mark.thorough("bf16-true", "16-true", "64-true", "16-mixed on a CPU")
@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"model": {"dtype": "bfloat16"}}, "model.dtype"),
        ({"trainer": {"precision": "bf16-true"}}, "trainer.precision"),
        ({"trainer": {"precision": "16-true"}}, "trainer.precision"),
        ({"trainer": {"precision": "64-true"}}, "trainer.precision"),
        ({"trainer": {"precision": "16-mixed"}}, "trainer.precision"),
    ],
    ids=["bfloat16 weights", "bf16-true", "16-true", "64-true", "16-mixed on a CPU"],
)
def test_a_precision_that_cannot_train_is_refused_by_name(changes: dict[str, Any], field: str, tmp_path: Path) -> None:
    assert f"{field}: " in refused_by(PLAIN, tmp_path / "cell", changes)


def test_the_table_has_every_cell_and_the_page_of_strategies_every_refusal() -> None:
    assert listed(PAGE.read_text()) == [cell.id for cell in CELLS]
    page = (ROOT / "docs" / "distributed.md").read_text()
    assert f"{len(CELLS)} runs" in page
    for rule in REFUSALS.values():
        assert f"`{rule.field}`" in page, rule


def test_a_table_is_written_in_place_of_the_old_one() -> None:
    lines = [row(PLAIN, [Error("policy 1", 1e-6, 1e-6, 0.0), Error("policy 2", 2e-6, 1e-6, 0.0)])]
    text = PAGE.read_text()
    again = written(lines, text)
    assert listed(again) == [PLAIN.id]
    assert again.partition("\n| run | on-policy")[0] == text.partition("\n| run | on-policy")[0]
    assert again.rpartition("|\n\n")[2] == text.rpartition("|\n\n")[2]
