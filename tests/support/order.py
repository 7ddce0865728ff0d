"""Files of tests by their measured time: the longest first, and out of the quick suite; or shuffled; parts and shares.

No test may need what another one has left.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests import ROOT

__all__ = [
    "PARTS", "QUICK_S", "SEED_VARIABLE", "in_order", "mark_slow", "measured", "missing_cases", "of_share", "parted",
    "shuffled",
]  # fmt: skip

SEED_VARIABLE = "GSPO_TEST_ORDER_SEED"
"""Of the environment: a whole number. Every process of pytest-xdist has the same."""


TABLE = ROOT / "tests" / "durations.json"
"""CPU seconds of files, as ``tools/durations.py`` writes them."""


PARTS = ("suite", "thorough", "all")


QUICK_S = 1.5
"""CPU seconds of a file that the quick suite still has."""


def measured() -> dict[str, float]:
    """CPU seconds of files, as they were when the table was written; none of new ones."""
    cpu_seconds: dict[str, float] = json.loads(TABLE.read_text(encoding="utf-8"))["files"]
    return cpu_seconds


def parted(items: Sequence[pytest.Item], part: str) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Split tests into those of a part and the others, both in their order.

    Args:
        items: tests.
        part: one of :data:`PARTS`: what is not marked as thorough, what is, or everything.
    """
    if part == "all":
        return list(items), []
    thorough = part == "thorough"
    chosen = [item for item in items if is_thorough(item) == thorough]
    others = [item for item in items if is_thorough(item) != thorough]
    return chosen, others


def of_share(items: Sequence[pytest.Item], share: str) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Split tests into those of a share and the others, both in their order; a file is in one share as a whole.

    Args:
        items: tests.
        share: ``K/N``: every N-th file from the K-th on.

    Raises:
        pytest.UsageError: ``share`` is no ``K/N`` with 1 <= K <= N.
    """
    match = re.fullmatch(r"(\d+)/(\d+)", share)
    number, count = map(int, match.groups()) if match else (0, 0)
    if not 1 <= number <= count:
        raise pytest.UsageError(f"--share: K/N with 1 <= K <= N is needed, got {share!r}")
    files = sorted({item.path for item in items})
    mine = set(files[number - 1 :: count])
    return [item for item in items if item.path in mine], [item for item in items if item.path not in mine]


def is_thorough(item: pytest.Item) -> bool:
    """Whether a test has the marker ``thorough``: with arguments, only the cases with these ids have it."""
    marker = item.get_closest_marker("thorough")
    if marker is None:
        return False
    return not marker.args or case_of(item) in marker.args


def case_of(item: pytest.Item) -> str:
    """Id of a parametrised test's case; empty for a test without cases."""
    return item.name.partition("[")[2].removesuffix("]")


def missing_cases(items: Sequence[pytest.Item]) -> dict[str, set[str]]:
    """Test -> cases that its marker ``thorough`` names and that it does not have: a renamed one joins the suite unseen.

    Args:
        items: every case of each test.
    """
    missing: dict[str, set[str]] = {}
    for item in items:
        marker = item.get_closest_marker("thorough")
        if marker is not None and marker.args:
            cases = missing.setdefault(item.nodeid.partition("[")[0], set(marker.args))
            cases.discard(case_of(item))
    return {test: cases for test, cases in missing.items() if cases}


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
