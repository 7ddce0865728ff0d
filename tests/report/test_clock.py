"""A clock that is set back, or was never right."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from gspo_lightning.cli import main
from gspo_lightning.commands.compare.runs import _summaries
from gspo_lightning.commands.evaluate.command import _new
from tests.runs import runs

YEAR_S = 365 * 86_400.0


@pytest.mark.thorough
def test_a_run_goes_on_and_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right, options = time.time, [*runs.UNTAUGHT, "--data.val=null"]
    runs.fit(tmp_path, *options, "--trainer.max_epochs=1")
    monkeypatch.setattr(time, "time", lambda: right() - 50 * YEAR_S)
    run = runs.fit(tmp_path, *options, "--ckpt_path=last")
    assert runs.summary(run)["updates"] == 4
    capsys.readouterr()
    assert main(["report", str(run)]) == 0
    assert "(4 updates, 2 iterations" in capsys.readouterr().out
    lines = [json.loads(line) for line in (run / "scalars.jsonl").read_text().splitlines()]
    for wrong in (-1e30, 1e30, float("inf"), float("nan")):
        rows = [line if isinstance(line, dict) else [*line[:2], wrong, *line[3:]] for line in lines]
        (run / "scalars.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        assert main(["report", str(run)]) == 0
        assert "did not expect" not in capsys.readouterr().err


def test_the_newest_run_of_a_comparison_is_the_one_with_the_highest_number(tmp_path: Path) -> None:
    for number in (10, 9, 2):  # written in this order
        (tmp_path / f"version_{number}").mkdir()
        (tmp_path / f"version_{number}" / "summary.json").touch()
    (tmp_path / "version_11").mkdir()
    assert [file.parent.name for file in _summaries(tmp_path)] == ["version_2", "version_9", "version_10"]


def test_an_evaluation_does_not_meet_another_one_of_the_same_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "strftime", lambda form: "20260101-000000")
    found = []
    for _ in range(3):
        found.append(_new(tmp_path))
        found[-1].mkdir()
    assert [path.name for path in found] == ["20260101-000000", "20260101-000000-2", "20260101-000000-3"]
