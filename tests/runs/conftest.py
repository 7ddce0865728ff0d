"""A cold start and a full quickstart, made once for all tests that need them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from filelock import FileLock

from tests.runs import runs

collect_ignore = [
    "graded.py",  # a plug-in: doctest would import it a second time, under another name
    "negative.py",  # another one
]


@pytest.fixture(scope="session")
def quickstart(cold_starts: Path) -> Path:
    """The run folder of the whole quickstart, seed 1, exactly as it ships.

    Processes of pytest-xdist share it: tests read it, and add evaluations only.
    """
    made = cold_starts / "quickstart.path"
    with FileLock(cold_starts / "quickstart.lock"):
        if not made.is_file():  # written when the run is whole
            root = cold_starts / f"quickstart-{os.getpid()}"
            runs.share_cold_start(cold_starts, root)
            made.write_text(str(runs.fit(root, small=False)))
    return Path(made.read_text())


@pytest.fixture
def taught(cold_starts: Path, tmp_path: Path) -> Path:
    """A root folder that shares its cold starts: that of seed 1 is there or is made."""
    runs.share_cold_start(cold_starts, tmp_path)
    return tmp_path
