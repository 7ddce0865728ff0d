"""What a test has written is counted while the program goes on making and removing files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gspo_lightning.rewards.sandbox.inside.disk import overfull

NOBODY = 0
"""No process has this number."""
LIMITS = {"files": 64, "disk_mb": 64, "file_mb": 64}
CHURN = """
import os, time
end = time.monotonic() + 20
while time.monotonic() < end:
    for n in range(60):
        open(f"file{n}", "w").close()
    for n in range(60):
        os.unlink(f"file{n}")
"""


@pytest.mark.thorough
def test_files_that_go_while_they_are_counted(tmp_path: Path) -> None:
    program = subprocess.Popen([sys.executable, "-S", "-c", CHURN], cwd=tmp_path)
    try:
        found = {overfull(str(tmp_path), program.pid, LIMITS) for _ in range(1000)}
    finally:
        program.kill()
        program.wait()
    assert found == {False}


def test_files_that_stay_are_counted(tmp_path: Path) -> None:
    for n in range(65):
        (tmp_path / str(n)).write_bytes(b"x")
    assert overfull(str(tmp_path), NOBODY, LIMITS)
    (tmp_path / "0").unlink()
    assert not overfull(str(tmp_path), NOBODY, LIMITS)
    (tmp_path / "0").write_bytes(b"x" * (65 << 20))
    (tmp_path / "1").unlink()
    assert overfull(str(tmp_path), NOBODY, LIMITS)
