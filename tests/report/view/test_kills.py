"""A viewer that is killed while it builds the index or writes the page leaves what the next one can use."""

from __future__ import annotations

import os
import signal
import sqlite3
from pathlib import Path

import pytest

from gspo_lightning.cli import main
from gspo_lightning.report.view.index import INDEX
from gspo_lightning.report.view.run_data import RunData
from tests.report.view.made import make_run, row
from tests.runs.processes import Command

ROWS = 12_000
"""More than two batches of the index."""
MOMENTS = {
    "gspo_lightning.report.view.index:_connect:1": "before there is an index",
    "gspo_lightning.report.view.index:parse:1": "its tables are empty",
    "gspo_lightning.report.view.index:parse:7000": "some rows are in it, others are read and not yet in it",
    "gspo_lightning.report.view.index:_tail:2": "rows are added, in a transaction that is not yet committed",
    "gspo_lightning.report.view.index:RolloutIndex.facts:1": "all rows are in it, without the facts of the whole",
    "gspo_lightning.report.view.page:write_page:1": "the page has not begun",
    "gspo_lightning.report.view.page:_private:1": "before the file beside it is made",
    "pathlib:Path.replace:1": "the file beside it is whole, and not yet swapped in",
}


@pytest.mark.thorough
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_kill_leaves_an_index_and_a_page_that_can_be_used(moment: str, tmp_path: Path) -> None:
    run, out = make_run(tmp_path / "run", (row(i // 8, sample=i % 8) for i in range(ROWS))), tmp_path / "page.html"
    view = ["view", str(run), "--output", str(out)]
    assert main(view) == 0
    page = out.read_bytes()
    (run / INDEX).unlink()
    killed = Command(view, kill_at=moment, log=tmp_path / "killed.log").start()
    assert killed.wait() == [-signal.SIGKILL], f"{moment} never came\n{killed.log.read_text()}"
    assert out.read_bytes() == page  # the old one
    data = RunData(run)
    data.refresh()
    assert data.index.facts()["rollouts"] == ROWS
    data.index.close()
    with sqlite3.connect(run / INDEX) as base:
        assert base.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    base.close()
    assert main(view) == 0
    assert out.read_bytes() == page  # the same one anew
    left = set(os.listdir(tmp_path)) - {"run", "page.html", "killed.log"}
    assert all(name.endswith(".unfinished") for name in left), left  # which a killed writer cannot remove
