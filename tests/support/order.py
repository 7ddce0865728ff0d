"""Files of tests by their measured time: the longest first, and out of the quick suite; or shuffled; and its two parts.

No test may need what another one has left.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests import ROOT

__all__ = [
    "PARTS", "QUICK_S", "SEED_VARIABLE", "THOROUGH", "in_order", "mark_slow", "measured", "parted", "shuffled",
    "thorough",
]  # fmt: skip

SEED_VARIABLE = "GSPO_TEST_ORDER_SEED"
"""Of the environment: a whole number. Every process of pytest-xdist has the same."""


TABLE = ROOT / "tests" / "durations.json"
"""CPU seconds of files, as ``tools/durations.py`` writes them."""


THOROUGH = ROOT / "tests" / "thorough.json"
"""File -> tests, or cases of them, that are not in the suite: their files test the same with what takes less time."""


PARTS = ("suite", "thorough", "all")


QUICK_S = 1.5
"""CPU seconds of a file that the quick suite still has."""


def measured() -> dict[str, float]:
    """CPU seconds of files, as they were when the table was written; none of new ones."""
    found: dict[str, float] = json.loads(TABLE.read_text(encoding="utf-8"))["files"]
    return found


def thorough() -> dict[str, list[str]]:
    """The content of :data:`THOROUGH`."""
    found: dict[str, list[str]] = json.loads(THOROUGH.read_text(encoding="utf-8"))
    return found


def parted(
    items: Sequence[pytest.Item], part: str, listed: Mapping[str, Sequence[str]]
) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Split tests into those of a part and the others, both in their order.

    Args:
        items: tests.
        part: one of :data:`PARTS`: what is not listed, what is, or everything.
        listed: file -> names of functions, or of single cases ``test_name[case]``.
    """

    def chosen(item: pytest.Item) -> bool:
        file, _, name = item.nodeid.partition("::")
        names = listed.get(file, ())
        return part == "all" or (name in names or name.partition("[")[0] in names) == (part == "thorough")

    return [item for item in items if chosen(item)], [item for item in items if not chosen(item)]


def in_order(items: Sequence[pytest.Item], seconds: Mapping[str, float]) -> list[pytest.Item]:
    """Files that take longest first: at the end, the processes share many small files evenly."""
    files = _by_file(items)
    return [item for file in sorted(files, key=lambda f: -_seconds(f, seconds)) for item in files[file]]


def mark_slow(items: Sequence[pytest.Item], seconds: Mapping[str, float]) -> None:
    """Leave the tests of files that take long to the whole suite, as if each of them were marked."""
    for item in items:
        if _seconds(item.path, seconds) > QUICK_S:
            item.add_marker("slow")


def _seconds(file: Path, seconds: Mapping[str, float]) -> float:
    name = str(file.relative_to(ROOT)) if file.is_relative_to(ROOT) else str(file)
    return seconds.get(name, 0.0)


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
