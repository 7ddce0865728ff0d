"""Rank 0 loads a model and shards it over all ranks: the same model, to the bit, as if every rank had loaded it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.policy.strategies.loaded import CASES, SENT
from tests.runs.processes import run_module


def report(ranks: int) -> dict[str, Any]:
    done = run_module("tests.policy.strategies.loaded", str(ranks))
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def two() -> dict[str, Any]:
    return report(2)


@pytest.mark.thorough
@pytest.mark.parametrize("name", [*CASES, "refused"])
def test_a_model_that_rank_0_loads_is_the_one_that_every_rank_would_load(two: dict[str, Any], name: str) -> None:
    assert [found.get(name, found) for found in two["ranks"]] == ["", ""]


@pytest.mark.thorough
@pytest.mark.parametrize("strategy", ["fsdp", "fsdp2"])
def test_gradients_of_replayed_routes_on_two_ranks_are_those_of_one_process(two: dict[str, Any], strategy: str) -> None:
    assert [found.get(f"replay {strategy}", found) for found in two["ranks"]] == ["", ""]


@pytest.mark.thorough
@pytest.mark.parametrize("strategy", ["fsdp", "fsdp2"])
@pytest.mark.parametrize("name", SENT)
def test_servers_are_sent_the_bytes_of_whole_weights(two: dict[str, Any], strategy: str, name: str) -> None:
    assert [found.get(f"sent {strategy} {name}", found) for found in two["ranks"]] == ["", ""]


def check_traffic(traffic: dict[str, float], ranks: int) -> None:
    assert traffic["loaded"] == 1 / ranks  # one of them reads all
    received = (ranks - 1) / ranks / ranks  # one of them receives what the others have, and they some orders
    assert traffic["gathered"] == pytest.approx(received, rel=1e-3)
    assert traffic["peak_gathering"] <= 1.0  # layers above the shard, on any rank but the first
    assert traffic["peak_loading"] <= 1.0
    assert traffic["peak_sending"] <= 1 + 1 / ranks + 0.1  # the tensor that is sent, and this rank's part of it


@pytest.mark.thorough
def test_of_two_ranks_one_reads_and_one_receives(two: dict[str, Any]) -> None:
    check_traffic(two["traffic"], 2)


@pytest.mark.long
def test_four_ranks_do_the_same() -> None:
    found = report(4)
    sent = [f"sent {strategy} {name}" for strategy in ("fsdp", "fsdp2") for name in SENT]
    assert found["ranks"] == [dict.fromkeys([*CASES, "refused", "replay fsdp2", "replay fsdp", *sent], "")] * 4
    check_traffic(found["traffic"], 4)
