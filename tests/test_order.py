"""A seed shuffles files, the same way every time, and nothing is lost or mixed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.order import files_in_random_order

ITEMS: list[Any] = [
    SimpleNamespace(path=Path(f"test_{file}.py"), name=f"{file}{i}") for file in "abcdef" for i in (2, 0, 1)
]


def names(seed: int) -> list[str]:
    return [item.name for item in files_in_random_order(ITEMS, seed)]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_whole_files_in_another_order(seed: int) -> None:
    found = names(seed)
    assert found == names(seed)
    assert sorted(found) == sorted(item.name for item in ITEMS)
    for start in range(0, len(found), 3):
        file = found[start][0]
        assert found[start : start + 3] == [f"{file}2", f"{file}0", f"{file}1"]


def test_seeds_differ_and_the_order_of_collection_does_not_matter() -> None:
    assert len({tuple(names(seed)) for seed in range(20)}) > 15
    swapped = [*ITEMS[3:], *ITEMS[:3]]
    assert [item.name for item in files_in_random_order(swapped, 7)] == names(7)
