"""Long files come first; a seed shuffles files, the same way every time, and nothing is lost or mixed."""

from __future__ import annotations

import ast
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import ROOT
from tests.support.order import QUICK_S, in_order, mark_slow, measured, parted, shuffled, thorough

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


def test_files_that_take_longest_are_first_and_new_ones_last() -> None:
    def item(path: str, name: str) -> Any:
        return SimpleNamespace(path=Path(path), name=name)

    items = [item("tests/a.py", "a0"), item("tests/b.py", "b0"), item("tests/b.py", "b1"), item("tests/c.py", "c0")]
    assert [i.name for i in in_order(items, {"tests/b.py": 3.0, "tests/c.py": 9.0})] == ["c0", "b0", "b1", "a0"]


def test_the_committed_table_names_files_that_are_there() -> None:
    """Most of them: a file may be renamed before the table is written anew."""
    found = measured()
    assert sum((ROOT / file).is_file() for file in found) > 0.8 * len(found) > 20


def test_files_of_many_seconds_are_not_for_the_quick_suite() -> None:
    marked: list[str] = []

    def item(file: str) -> Any:
        return SimpleNamespace(path=Path(file), add_marker=lambda mark: marked.append(f"{file} {mark}"))

    mark_slow([item("tests/a.py"), item("tests/b.py")], {"tests/a.py": QUICK_S, "tests/b.py": QUICK_S + 0.1})
    assert marked == ["tests/b.py slow"]


def test_the_parts_are_disjoint_and_together_everything() -> None:
    listed = {"tests/a.py": ["test_one", "test_two[big]"]}
    ids = ["a.py::test_one", "a.py::test_one[x]", "a.py::test_two[big]", "a.py::test_two[small]", "b.py::test_one"]
    items: list[Any] = [SimpleNamespace(nodeid=f"tests/{name}") for name in ids]
    found = {part: [item.nodeid for item in parted(items, part, listed)[0]] for part in ("suite", "thorough", "all")}
    assert found["thorough"] == [f"tests/{name}" for name in ids[:3]]
    assert found["suite"] == [f"tests/{name}" for name in ids[3:]]
    assert found["all"] == [f"tests/{name}" for name in ids]
    assert [item.nodeid for item in parted(items, "suite", listed)[1]] == found["thorough"]


def test_the_committed_list_names_tests_that_are_there() -> None:
    for file, names in thorough().items():
        there = {node.name for node in ast.parse((ROOT / file).read_text()).body if isinstance(node, ast.FunctionDef)}
        assert {name.partition("[")[0] for name in names} <= there, file
