"""Programs of ``benchmarks/program_sets/`` are paid what they are worth: some of each kind, all in the long form."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.program_sets import Entry
from benchmarks.programs import chosen, main


def counts(file: Path) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = json.loads(file.read_text())["counts"]
    return found


@pytest.mark.thorough
def test_some_of_each_kind(tmp_path: Path) -> None:
    assert main(["--each", "3", "--output", str(tmp_path / "x.json")]) == 0
    for kind, count in counts(tmp_path / "x.json").items():
        assert count["right"] + count["missing"] == count["of"] >= 3, kind
        assert count["missing"] == 0 or kind == "third"


def test_a_program_that_is_paid_wrongly_is_a_fault(tmp_path: Path) -> None:
    rows = [{"task_id": 1, "code": "def f(x):\n    return x", "test_imports": [], "test_list": ["assert f(1) == 2"]}]
    (tmp_path / "mbpp.json").write_text(json.dumps(rows))
    files = ["--mbpp", str(tmp_path / "mbpp.json"), "--output", str(tmp_path / "x.json")]
    assert main(["--kinds", "MBPP", *files]) == 1
    assert counts(tmp_path / "x.json") == {"MBPP": {"right": 0, "of": 1, "missing": 0}}


def test_a_few_are_spread_over_their_kind() -> None:
    found = [(Entry(kind, str(i), "", None), True) for kind in "ab" for i in range(10)]
    assert [(e.kind, e.name) for e, _ in chosen(iter(found), ["b"], 3)] == [("b", n) for n in "0369"]
    assert len(list(chosen(iter(found), None, 0))) == 20


@pytest.mark.long
def test_all_of_them(tmp_path: Path) -> None:
    assert main(["--output", str(tmp_path / "x.json")]) == 0
    found = counts(tmp_path / "x.json")
    honest = [count for kind, count in found.items() if kind not in ("wrong", "cheats")]
    assert sum(count["of"] for count in honest) == 250
    assert sum(count["right"] for count in honest) == 248
    assert all(found[kind]["right"] == found[kind]["of"] for kind in ("wrong", "cheats"))
