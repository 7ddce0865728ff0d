"""The promise of configs/code.yaml: with programs run in the sandbox for a reward, the tiny model learns."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.runs import runs

CODE = runs.ROOT / "configs" / "code.yaml"


@pytest.mark.slow
@pytest.mark.long  # test_configs.py makes a step of it
@pytest.mark.parametrize(
    ("iterations", "options", "learnt"),
    [(4, ["--data.evaluation.limit=64"], 0.6), (10, [], 0.9)],  # 10 is what ships
)
def test_the_policy_learns_to_write_programs_that_pass(
    iterations: int, options: list[str], learnt: float, taught: Path
) -> None:
    run = runs.fit(taught, f"--trainer.max_epochs={iterations}", *options, small=False, config=CODE)
    summary = runs.summary(run)
    assert summary["iterations"] == iterations
    assert summary["accuracy_before"] <= 0.4
    assert summary["accuracy_after"] >= learnt
    assert {v for _, v in runs.scalars(run)["reward/missing"]} == {0.0}
    assert all("(" in example["after"] for example in summary["examples"])
