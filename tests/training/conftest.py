"""A cold start and a full quickstart, made once for all tests that need them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training import runs

collect_ignore = ["graded.py"]  # a plug-in: doctest would import it a second time, under another name


@pytest.fixture(scope="session")
def quickstart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder of the whole quickstart, seed 1, exactly as it ships."""
    return runs.fit(tmp_path_factory.mktemp("quickstart"), small=False)


@pytest.fixture
def taught(quickstart: Path, tmp_path: Path) -> Path:
    """A root folder that already holds the cold start of seed 1."""
    runs.share_cold_start(quickstart.parents[1], tmp_path)
    return tmp_path
