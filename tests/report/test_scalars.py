"""The compact file of a run: what goes in comes out, whatever a kill left of the last line."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from torch.utils.tensorboard import SummaryWriter

from gspo_lightning.core.errors import InfrastructureError
from gspo_lightning.report.read import read_run
from gspo_lightning.report.scalars import Scalars

MIXED = [
    (0, {"val/accuracy": 0.25}),
    (1, {"loss": 1 / 3, "by_mini_batch/x_0": 1.0}),
    (2, {"loss": -2e-30, "by_mini_batch/x_1": math.inf}),
    (3, {"loss": math.nan, "by_mini_batch/x_0": 3e7}),
    (3, {"val/accuracy": 0.5}),
    (4, {"loss": 0.125, "by_mini_batch/x_1": -math.inf}),
]
EXPECTED = {
    "val/accuracy": ([0, 3], [0.25, 0.5]),
    "loss": ([1, 2, 3, 4], [1 / 3, -2e-30, math.nan, 0.125]),
    "by_mini_batch/x_0": ([1, 3], [1.0, 3e7]),
    "by_mini_batch/x_1": ([2, 4], [math.inf, -math.inf]),
}


def filled(folder: Path) -> Scalars:
    scalars = Scalars(folder)
    for step, values in MIXED:
        scalars.add(step, values)
    return scalars


def check(scalars: Scalars, expected: dict[str, tuple[list[int], list[float]]] = EXPECTED) -> None:
    found = scalars.series()
    assert found.keys() == expected.keys()
    for tag, (steps, values) in expected.items():
        assert found[tag].steps.tolist() == steps
        np.testing.assert_array_equal(found[tag].values, np.float32(values))  # as event files have them


def test_logged_scalars_read_back_from_the_file_as_in_memory(tmp_path: Path) -> None:
    scalars = filled(tmp_path)
    check(scalars)
    read = Scalars.read(tmp_path)
    check(read)
    assert (len(read), read.damaged) == (6, 0)
    times = read.times()
    assert times is not None
    assert times == pytest.approx(scalars.times(), abs=0.01)
    lines = scalars.file.read_text().splitlines()
    assert lines[0] == '{"table": 0, "tags": ["val/accuracy"]}'
    assert len(lines) == 3 + 6  # each set of tags is named once


@pytest.mark.parametrize("lost", [1, 20, 30])
def test_a_line_that_a_kill_cut_off_is_left_out_and_said(tmp_path: Path, lost: int) -> None:
    filled(tmp_path).file.write_bytes((tmp_path / "scalars.jsonl").read_bytes()[:-lost])
    kept = {tag: sum(step < 4 for step in steps) for tag, (steps, _) in EXPECTED.items()}
    cut = {tag: (steps[: kept[tag]], values[: kept[tag]]) for tag, (steps, values) in EXPECTED.items()}
    read = Scalars.read(tmp_path)
    check(read, EXPECTED if lost == 1 else cut)  # the end of the line alone loses nothing
    assert read.damaged == (lost != 1)
    if lost != 1:
        assert "1 damaged lines of scalars.jsonl were left out" in read_run(tmp_path_with_events(tmp_path)).problems


def tmp_path_with_events(folder: Path) -> Path:
    SummaryWriter(str(folder)).close()
    return folder


def test_rows_of_a_table_whose_names_are_damaged_go_to_no_other(tmp_path: Path) -> None:
    file = filled(tmp_path).file
    lines = file.read_text().splitlines(keepends=True)
    assert '"table": 1' in lines[2]
    file.write_text("".join([*lines[:2], lines[2].replace("table", "tab"), *lines[3:]]))
    read = Scalars.read(tmp_path)
    assert read.damaged == 3  # the names, and two rows
    check(read, {"val/accuracy": ([0, 3], [0.25, 0.5]), "loss": ([2, 4], [-2e-30, 0.125]),
                 "by_mini_batch/x_1": EXPECTED["by_mini_batch/x_1"]})  # fmt: skip


def test_cutting_forgets_what_comes_after_and_mends_the_file(tmp_path: Path) -> None:
    file = filled(tmp_path).file
    file.write_bytes(file.read_bytes()[:-20])
    scalars = Scalars.read(tmp_path)
    scalars.cut(3)
    scalars.add(3, {"loss": 7.0, "by_mini_batch/x_0": 8.0})
    scalars.add(3, {"loss": 9.0, "by_mini_batch/x_0": 8.0})  # logged twice: the later counts
    after = {"val/accuracy": ([0], [0.25]), "loss": ([1, 2, 3], [1 / 3, -2e-30, 9.0]),
             "by_mini_batch/x_0": ([1, 3], [1.0, 8.0]), "by_mini_batch/x_1": ([2], [math.inf])}  # fmt: skip
    check(scalars, after)
    check(Scalars.read(tmp_path), after)
    assert Scalars.read(tmp_path).damaged == 0


def test_a_file_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "scalars.jsonl").mkdir()
    with pytest.raises(InfrastructureError, match=r"scalars.jsonl cannot be written: Is a directory.\n  fix: make"):
        Scalars(tmp_path).add(1, {"loss": 1.0})


def test_report_command_imports_no_torch() -> None:
    code = "import sys, gspo_lightning.commands.report; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_file_that_is_removed_during_a_run_is_written_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    scalars = Scalars(tmp_path)
    for step in range(1, 4):
        scalars.add(step, {"loss": float(step)})
    scalars.file.unlink()
    scalars.add(4, {"loss": 4.0})
    scalars.add(5, {"loss": 5.0, "reward": 1.0})
    assert Scalars.read(tmp_path).series()["loss"].values.tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert [record.getMessage() for record in caplog.records] == [
        f"{scalars.file} was removed during the run, and is written anew from memory"
    ]
