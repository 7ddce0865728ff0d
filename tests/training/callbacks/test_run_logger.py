"""The logger of a run folder: all numbers in one file, and no more events than TensorBoard can show."""

from __future__ import annotations

from pathlib import Path

import pytest
from lightning.pytorch.loggers import TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from gspo_lightning.report.read import read_run
from gspo_lightning.report.scalars import Scalars
from gspo_lightning.training.callbacks import run_logger
from gspo_lightning.training.callbacks.run_logger import RunLogger, scalars_of


def log(logger: TensorBoardLogger, updates: range) -> None:
    """Four updates an iteration, and an evaluation every 20."""
    for step in updates:
        iteration, place = divmod(step - 1, 4)
        logger.log_metrics({"data/iteration": float(iteration), f"by_mini_batch/x_{place}": float(step)}, step)
        if step % 20 == 0:
            logger.log_metrics({"val/accuracy": step / 1000}, step)
    logger.experiment.close()


def shown(folder: Path, tag: str) -> list[int]:
    reader = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    reader.Reload()
    return [event.step for event in reader.Scalars(tag)]


def made(root: Path, **more: int) -> RunLogger:
    return RunLogger(root, name="", version="run", default_hp_metric=False, **more)


def test_late_events_are_those_of_whole_iterations_and_all_evaluations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_logger, "FULL_UPDATES", 40)
    log(made(tmp_path), range(1, 161))
    folder = tmp_path / "run"
    assert shown(folder, "data/iteration") == [*range(1, 45), *range(81, 85), *range(121, 125)]
    assert shown(folder, "by_mini_batch/x_3") == [*range(4, 45, 4), 84, 124]  # every place of an iteration goes on
    assert shown(folder, "val/accuracy") == list(range(20, 161, 20))
    run = read_run(folder)
    assert run.scalars["data/iteration"].steps.tolist() == list(range(1, 161))
    assert run.scalars["by_mini_batch/x_0"].values.tolist() == list(range(1, 161, 4))
    assert run.updates == 160
    assert not any("event files" in problem for problem in run.problems)
    (folder / "scalars.jsonl").unlink()  # as of a run of which only the event files were kept
    run = read_run(folder)
    assert run.updates == 124
    assert "the event files lack 72 of the 124 updates up to 124, and scalars.jsonl has none" in " ".join(run.problems)


def test_a_resumed_run_neither_loses_nor_doubles(tmp_path: Path) -> None:
    log(made(tmp_path), range(1, 31))
    again = made(tmp_path, purge_step=25)
    log(again, range(25, 29))
    folder = tmp_path / "run"
    assert shown(folder, "data/iteration") == list(range(1, 29))
    for found in (Scalars.read(folder), scalars_of([again])):
        assert found is not None
        assert found.series()["data/iteration"].steps.tolist() == list(range(1, 29))
        assert found.series()["val/accuracy"].steps.tolist() == [20]


def test_a_run_that_older_code_began_keeps_its_numbers(tmp_path: Path) -> None:
    log(TensorBoardLogger(tmp_path, name="", version="run", default_hp_metric=False), range(1, 31))
    folder = tmp_path / "run"
    assert not (folder / "scalars.jsonl").exists()
    before = read_run(folder)
    log(made(tmp_path, purge_step=25), range(25, 41))
    after = read_run(folder)
    assert after.scalars["data/iteration"].steps.tolist() == list(range(1, 41))
    assert after.scalars["val/accuracy"].values.tolist() == pytest.approx([0.02, 0.04])
    assert after.started == pytest.approx(before.started, abs=0.01)


def test_other_loggers_have_no_such_file(tmp_path: Path) -> None:
    assert scalars_of([TensorBoardLogger(tmp_path)]) is None


@pytest.mark.parametrize("events", [True, False])
def test_a_resume_over_a_file_that_was_cut_says_what_is_gone(
    events: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log(made(tmp_path), range(1, 31))
    folder = tmp_path / "run"
    whole, file = Scalars.read(folder).series(), folder / "scalars.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    assert lines[16].startswith(b"[")
    file.write_bytes(b"".join(lines[:16]) + lines[16][:-9])
    there = sorted(Scalars.read(folder).series()["data/iteration"].steps.tolist())
    if not events:
        for path in folder.glob("events.*"):
            path.unlink()
    log(made(tmp_path, purge_step=25), range(25, 29))
    (said,) = [record.getMessage() for record in caplog.records]
    lost, gone = 24 - len(there), 0 if events else 24 - len(there)
    assert f"{file} lacked the numbers of {lost} updates before 25" in said
    assert "1 damaged lines are dropped" in said
    assert f"{lost - gone} are taken from the event files, those of {gone} are gone" in said
    after = Scalars.read(folder)
    assert after.damaged == 0
    steps = [*range(1, 29)] if events else [*there, *range(25, 29)]
    assert after.series()["data/iteration"].steps.tolist() == steps
    for tag in ("data/iteration", "by_mini_batch/x_3"):
        kept = dict(zip(whole[tag].steps.tolist(), whole[tag].values.tolist(), strict=True))
        for step, value in zip(after.series()[tag].steps.tolist(), after.series()[tag].values.tolist(), strict=True):
            assert value == kept[step]


def test_a_resume_over_a_whole_file_says_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log(made(tmp_path), range(1, 31))
    log(made(tmp_path, purge_step=25), range(25, 41))
    log(made(tmp_path, purge_step=3), range(3, 9))
    log(made(tmp_path, purge_step=1), range(1, 3))
    assert not caplog.records
