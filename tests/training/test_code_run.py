"""The promise of configs/code.yaml: with programs run in the sandbox for a reward, the tiny model learns."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training import runs

CODE = runs.ROOT / "configs" / "code.yaml"


@pytest.mark.slow
def test_the_policy_learns_to_write_programs_that_pass(tmp_path: Path) -> None:
    run = runs.fit(tmp_path, small=False, config=CODE)
    summary = runs.summary(run)
    assert summary["accuracy_before"] <= 0.4
    assert summary["accuracy_after"] >= 0.9
    assert {v for _, v in runs.scalars(run)["reward/missing"]} == {0.0}
    assert all("(" in example["after"] for example in summary["examples"])
