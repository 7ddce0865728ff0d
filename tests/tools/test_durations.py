"""The check of the suite's CPU time, on made-up measurements."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tools.durations import main


def measured(path: Path, calibrations: list[float], **tests: float) -> str:
    spent = {f"tests/test_{name[0]}.py::{name}": {"setup": 0.0, "call": seconds} for name, seconds in tests.items()}
    path.write_text(json.dumps({"calibrations": calibrations, "processes": [9.0], "tests": spent}))
    return str(path)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "table.json"
    assert (
        main([measured(tmp_path / "before", [0.1, 0.1, 9.0], a=6.0, b=3.0, bb=1.0), "--write", f"--table={path}"]) == 0
    )
    return path


def test_the_table_has_sums_files_and_the_slowest(table: Path) -> None:
    found: dict[str, Any] = json.loads(table.read_text())
    assert found["calibration"] == 0.1  # the median: one moment of a busy machine is none
    assert (found["total"], found["tests"]) == (10.0, 3)
    assert found["files"] == {"tests/test_a.py": 6.0, "tests/test_b.py": 4.0}
    assert list(found["slowest"].items())[:2] == [("tests/test_a.py::a", 6.0), ("tests/test_b.py::b", 3.0)]


@pytest.mark.parametrize(
    ("calibration", "first", "second", "times"),
    [(0.1, 6.0, 5.4, "1.14"), (0.1, 6.0, 5.8, "1.18"), (0.2, 12.0, 10.8, "1.14"), (0.05, 3.0, 2.9, "1.18")],
)
def test_more_than_15_percent_fails_whatever_the_speed_of_the_machine(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], calibration: float, first: float, second: float,
    times: str,
) -> None:  # fmt: skip
    """The second file took 4 s of 10 for the table; the last two machines are half and twice as fast."""
    file = measured(tmp_path / "now", [calibration], a=first, b=second)
    assert main([file, f"--table={table}"]) == (times == "1.18")
    shown = capsys.readouterr().out
    assert f"{times} times" in shown
    assert ("error: " in shown) == (times == "1.18")


def test_file_that_grew_slower_is_named(table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([measured(tmp_path / "now", [0.1], a=6.0, b=4.0, c=5.0), f"--table={table}"]) == 1
    assert "+5.0 s  tests/test_c.py" in capsys.readouterr().out
