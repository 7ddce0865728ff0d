"""A cold start and a full quickstart, made once for all tests that need them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.runs import runs

collect_ignore = [
    "graded.py",  # a plug-in: doctest would import it a second time, under another name
    "negative.py",  # another one
    "fixtures",  # made by older code
]


@pytest.fixture(scope="session")
def quickstart(tmp_path_factory: pytest.TempPathFactory, cold_starts: Path) -> Path:
    """The run folder of the whole quickstart, seed 1, exactly as it ships."""
    root = tmp_path_factory.mktemp("quickstart")
    runs.share_cold_start(cold_starts, root)
    return runs.fit(root, small=False)


@pytest.fixture
def taught(cold_starts: Path, tmp_path: Path) -> Path:
    """A root folder that shares its cold starts: that of seed 1 is there or is made."""
    runs.share_cold_start(cold_starts, tmp_path)
    return tmp_path
