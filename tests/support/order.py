"""The order of files: those that take longest first, or any other, for no test may need what another one has left."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

__all__ = ["SEED_VARIABLE", "in_order", "shuffled"]

SEED_VARIABLE = "GSPO_TEST_ORDER_SEED"
"""Of the environment: a whole number. Every process of pytest-xdist has the same."""


def in_order(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Files with slow tests first, then those of real runs: at the end, two processes share many small files evenly."""
    files = _by_file(items)
    slow = {file for file, tests in files.items() if any(test.get_closest_marker("slow") for test in tests)}
    return [
        item for file in sorted(files, key=lambda f: (f not in slow, "runs" not in f.parts)) for item in files[file]
    ]


def shuffled(items: Sequence[pytest.Item], seed: int) -> list[pytest.Item]:
    """The same tests, file by file; a file's own keep their order. The same seed and files give the same order."""
    by_file = _by_file(items)
    files = sorted(by_file)
    random.Random(seed).shuffle(files)
    return [item for file in files for item in by_file[file]]


def _by_file(items: Sequence[pytest.Item]) -> dict[Path, list[pytest.Item]]:
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    return files
