"""The benchmark of the gateway measures both servers; what it finds is not asserted."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks.gateway import TURNS, bodies, main


@pytest.mark.thorough
def test_both_servers_are_measured(tmp_path: Path) -> None:
    assert main(["--conversations", "2", "--output", str(tmp_path / "x.json")]) == 0
    found = json.loads((tmp_path / "x.json").read_text())
    assert set(found["bare"]) == set(found["gateway"])
    assert all(value > 0 for kind in ("bare", "gateway") for value in found[kind].values())


def test_a_conversation_is_sent_whole_in_every_turn() -> None:
    talks = [json.loads(body)["messages"] for body in bodies()]
    assert [len(talk) for talk in talks] == [2 + 2 * i for i in range(TURNS)]
    assert all(long[: len(short)] == short for short, long in pairwise(talks))
