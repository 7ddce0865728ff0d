"""The end of ``gspo fit``: what it says of the result agrees with the summary that it has written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gspo_lightning.report.answers import SCORES, AnswersFile
from gspo_lightning.report.page import read_runs
from gspo_lightning.training.callbacks import summary
from tests.support.recorded_run import write_run


def without_logger(folder: Path, **results: float | None) -> Path:
    """A run that logged no scalars: it has a summary and the scores of 100 held-out prompts."""
    write_run(folder)
    next(folder.glob("events.*")).unlink()
    file = folder / "summary.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | results))
    return folder


def add_scores(folder: Path, column: str, evaluations: dict[int, list[float]]) -> None:
    other = {"accuracy": "reward", "reward": "accuracy"}[column]
    file = AnswersFile(folder, SCORES)
    for update, row in evaluations.items():
        file.add(update, [{"id": list(range(len(row))), column: row, other: [None] * len(row)}])


def test_a_reward_that_is_no_fraction_is_the_result_without_a_logger_too(tmp_path: Path) -> None:
    nothing = {"accuracy_before": None, "accuracy_after": None}
    folder = without_logger(tmp_path / "run", **nothing, reward_before=-0.2, reward_after=1.8)
    runs, line = summary.read_back(folder, None)
    assert runs[0].shown_by == "mean reward"
    assert line == "held-out mean reward -0.20 → 1.80: +2.00, no interval recorded"
    add_scores(folder, "reward", {0: [-0.2] * 100, 80: [1.8] * 100})
    line = summary.read_back(folder, None)[1]
    assert line is not None
    assert line.startswith("held-out mean reward -0.20 → 1.80: +2.00 [")


def test_a_change_without_a_logger_is_that_of_the_two_results_shown(tmp_path: Path) -> None:
    folder = without_logger(tmp_path / "run", accuracy_before=0.25, accuracy_after=0.75)
    add_scores(folder, "accuracy", {20: [1.0] * 50 + [0.0] * 50, 80: [1.0] * 75 + [0.0] * 25})  # resumed at 20
    assert summary.read_back(folder, None)[1] == "held-out accuracy 0.25 → 0.75: +0.50, no interval recorded"


def test_a_run_resumed_into_a_new_folder_says_since_when_its_change_is(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", evaluations={20: 0.5, 80: 0.75})
    file = folder / "summary.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"accuracy_before": 0.25}))
    line = summary.read_back(folder, None)[1]
    assert line is not None
    assert line == (
        "held-out accuracy 0.50 → 0.75 since update 20: +0.25 [+0.19, +0.31], from standard errors "
        "(brackets: 95 % interval)"
    )


def test_training_that_cannot_be_read_back_ends_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = write_run(tmp_path / "run")

    def damaged(*arguments: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(summary, "read_runs", damaged)
    assert summary.read_back(folder, None) == ([], None)
    assert [record.getMessage() for record in caplog.records] == [
        f"{folder} cannot be read back (OSError: [Errno 5] Input/output error): there is no report; "
        "training is not concerned"
    ]
    monkeypatch.setattr(summary, "read_runs", read_runs)
    assert summary.read_back(folder, None)[1] is not None
