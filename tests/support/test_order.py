"""Long files come first; a seed shuffles files, the same way every time, and nothing is lost or mixed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.order import in_order, shuffled

ITEMS: list[Any] = [
    SimpleNamespace(path=Path(f"test_{file}.py"), name=f"{file}{i}") for file in "abcdef" for i in (2, 0, 1)
]


def names(seed: int) -> list[str]:
    return [item.name for item in shuffled(ITEMS, seed)]


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
    assert [item.name for item in shuffled(swapped, 7)] == names(7)


def test_files_with_slow_tests_are_first_then_those_of_runs() -> None:
    def item(path: str, name: str, slow: bool = False) -> Any:
        return SimpleNamespace(path=Path(path), name=name, get_closest_marker=lambda mark: mark == "slow" and slow)

    items = [
        item("tests/test_a.py", "a0"), item("tests/test_b.py", "b0"), item("tests/test_b.py", "b1", slow=True),
        item("tests/runs/test_c.py", "c0"), item("tests/runs/test_d.py", "d0", slow=True),
    ]  # fmt: skip
    assert [i.name for i in in_order(items)] == ["d0", "b0", "b1", "c0", "a0"]
