"""The end of ``gspo fit``: what it says of the result agrees with the summary that it has written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gspo_lightning.cli import main
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


def test_a_run_ends_with_what_looks_wrong_and_what_to_do(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A limit that cuts every answer, and so rewards of 0, are said where a newcomer looks: below the last update."""
    monkeypatch.chdir(tmp_path)
    few = [
        "--model.cold_start=null", "--trainer.max_epochs=1", "--data.prompts_per_rollout=4", "--data.group_size=2",
        "--data.evaluation.limit=4", "--data.reward_workers=1", "--data.max_response_tokens=1",
    ]  # fmt: skip
    assert main(["fit", "--config=quickstart", *few]) == 0
    end = capsys.readouterr().out.splitlines()[-12:]
    (cut,) = [line for line in end if line.startswith("! length: ")]
    assert cut.endswith(
        "% truncated in the last fifth: the limit decides what is paid; raise data.max_response_tokens)"
    )
    (dead,) = [line for line in end if line.startswith("! dead groups: ")]
    assert "use easier prompts" in dead
    assert end[-1].split(maxsplit=1)[1] == "gspo view runs/quickstart/version_0"
    (early,) = [message for message in caplog.messages if message.startswith("nothing to learn from yet")]
    assert "% of the responses were cut at data.max_response_tokens (1): raise it first" in early


def test_a_run_without_a_fault_ends_without_advice(tmp_path: Path) -> None:
    runs, _ = summary.read_back(write_run(tmp_path / "run"), None)
    assert [line for line in summary.advice(runs) if line.startswith("! length")] == []
