"""A viewer that is killed while it builds the index or writes the page leaves what the next one can use."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gspo_lightning.cli import main
from gspo_lightning.report.view.index import INDEX
from gspo_lightning.report.view.run_data import RunData
from tests import ROOT
from tests.report.view.made import make_run, row

CODE = "import sys; from gspo_lightning.cli import main; sys.exit(main(sys.argv[1:]))"
ROWS = 12_000


def killed(argv: list[str], seconds: float) -> bool:
    """Start a command, kill it after some seconds; True if it was still running."""
    process = subprocess.Popen([sys.executable, "-c", CODE, *argv], cwd=ROOT, stdout=subprocess.DEVNULL)
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        process.wait()
        return True
    return False


@pytest.mark.long
def test_kills_while_an_index_is_built_or_a_page_exported(tmp_path: Path) -> None:
    run, out = make_run(tmp_path / "run", (row(i // 8, sample=i % 8) for i in range(ROWS))), tmp_path / "page.html"
    begin = time.monotonic()
    assert main(["view", str(run), "--output", str(out)]) == 0
    took, page = time.monotonic() - begin + 2.0, out.read_bytes()  # and the start of a process
    numbers, kills = random.Random(1), 0
    for _ in range(12):
        (run / INDEX).unlink(missing_ok=True)
        kills += killed(["view", str(run), "--output", str(out)], numbers.uniform(0.2, 1.0) * took)
        assert out.read_bytes() == page  # the old one, or the same one anew
        data = RunData(run)
        data.refresh()
        assert data.index.facts()["rollouts"] == ROWS
        data.index.close()
        with sqlite3.connect(run / INDEX) as base:
            assert base.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        base.close()
    assert kills > 3
    assert main(["view", str(run), "--output", str(out)]) == 0
    left = [name for name in os.listdir(tmp_path) if name not in ("run", "page.html")]
    assert all(name.endswith(".unfinished") for name in left), left
