"""Long files come first; a seed shuffles files, the same way every time, and nothing is lost or mixed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import ROOT
from tests.support.order import (
    PARTS,
    QUICK_S,
    in_order,
    mark_slow,
    measured,
    missing_cases,
    of_share,
    parted,
    shuffled,
)

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


def marked(name: str, *cases: str) -> Any:
    """A test with the marker ``thorough``."""
    marker = SimpleNamespace(args=cases)
    return SimpleNamespace(name=name, nodeid=name, get_closest_marker={"thorough": marker}.get)


def unmarked(name: str) -> Any:
    return SimpleNamespace(name=name, nodeid=name, get_closest_marker=lambda _: None)


def test_the_parts_are_disjoint_and_together_everything() -> None:
    items = [marked("test_a[x]"), marked("test_b[big]", "big"), marked("test_b[small]", "big"), unmarked("test_c")]
    chosen = {part: [item.name for item in parted(items, part)[0]] for part in PARTS}
    assert chosen["thorough"] == ["test_a[x]", "test_b[big]"]
    assert chosen["suite"] == ["test_b[small]", "test_c"]
    assert chosen["all"] == ["test_a[x]", "test_b[big]", "test_b[small]", "test_c"]
    assert [item.name for item in parted(items, "suite")[1]] == chosen["thorough"]


def test_shares_are_whole_files_and_together_everything() -> None:
    shares = [[item.name for item in of_share(ITEMS, f"{number}/4")[0]] for number in (1, 2, 3, 4)]
    assert shares == [["a2", "a0", "a1", "e2", "e0", "e1"], ["b2", "b0", "b1", "f2", "f0", "f1"],
                      ["c2", "c0", "c1"], ["d2", "d0", "d1"]]  # fmt: skip
    assert [item.name for item in of_share(ITEMS, "3/4")[1]] == shares[0][:3] + shares[1][:3] + shares[3] + [
        *shares[0][3:], *shares[1][3:]
    ]  # fmt: skip


@pytest.mark.parametrize("share", ["0/4", "5/4", "1", "a/b", "1/0", ""])
def test_a_share_that_is_none_is_told(share: str) -> None:
    with pytest.raises(pytest.UsageError, match="--share: K/N with 1 <= K <= N is needed"):
        of_share(ITEMS, share)


def test_a_marker_that_names_a_case_that_is_gone_is_told() -> None:
    items = [marked("test_b[large]", "big", "small"), marked("test_b[small]", "big", "small"), marked("test_d", "x")]
    assert missing_cases(items) == {"test_b": {"big"}, "test_d": {"x"}}
