"""docs/python.md: its code runs as it stands there, in order, and does what the page says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests import ROOT

PAGE = (ROOT / "docs" / "python.md").read_text()


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the names of the page are after all of its code has run in an empty folder."""
    folder, names = tmp_path_factory.mktemp("python"), {"__name__": "page"}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for block in re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL):
            exec(compile(block, "docs/python.md", "exec"), names)
    return names | {"folder": folder}


@pytest.mark.thorough
def test_the_trainer_learns_and_is_saved(ran: dict[str, Any]) -> None:
    assert ran["after"] > ran["before"] + 0.1
    assert ran["resumed"].iteration == 11
    assert (Path(ran["folder"]) / "trained" / "config.json").is_file()
    assert ran["other"].objective.clip_high == 0.3


@pytest.mark.thorough
def test_rewards_show_with_lightning_by_hand(ran: dict[str, Any]) -> None:
    trainer = ran["lightning_trainer"]
    assert trainer.global_step == 4
    assert {"reward/mean", "ratio/mean", "optim/gradient_norm", "val/accuracy"} <= trainer.callback_metrics.keys()
    assert trainer.progress_bar_metrics.keys() >= {"reward/mean", "response/length"}
    assert trainer.progress_bar_metrics["reward/mean"] == trainer.callback_metrics["reward/mean"]
    run = Path(trainer.log_dir)
    assert run.is_relative_to(ran["folder"] / "runs") or run.is_relative_to("runs")
    there = {file.name for file in (Path(ran["folder"]) / "runs").rglob("*")}
    assert {"last.ckpt", "step-00000004.ckpt", "report.png", "summary.json"} <= there


def test_an_objective_alone_moves_towards_what_is_paid(ran: dict[str, Any]) -> None:
    out, advantages = ran["out"], ran["advantages"]
    assert out.clipped.any()
    moved = (ran["logprobs_of"](ran["tokens"]) - ran["old_logprobs"]).mean(dim=1)
    assert ((moved > 0) == (advantages > 0)).all()
    assert (moved != 0).all()
