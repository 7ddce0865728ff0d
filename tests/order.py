"""The files of the suite in another order: no test may need what another one has left."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

__all__ = ["SEED_VARIABLE", "files_in_random_order"]

SEED_VARIABLE = "GSPO_TEST_ORDER_SEED"
"""Of the environment: a whole number. Every process of pytest-xdist has the same."""


def files_in_random_order(items: Sequence[pytest.Item], seed: int) -> list[pytest.Item]:
    """The same tests, file by file; a file's own keep their order. The same seed and files give the same order."""
    by_file: dict[Path, list[pytest.Item]] = {}
    for item in items:
        by_file.setdefault(item.path, []).append(item)
    files = sorted(by_file)
    random.Random(seed).shuffle(files)
    return [item for file in files for item in by_file[file]]
