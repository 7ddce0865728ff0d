"""The whole way through a simulated device: right results, nothing that waits, and faults that it finds."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from tests.runs.processes import run_module

KEYS = [
    "kernels_compiled", "eager_attention", "weight_casts_per_step", "syncs_per_step", "syncs_per_micro_batch",
    "copy_syncs_per_large_micro_batch", "launches_per_layer_and_step", "launches_per_layer_and_step_with_adapters",
    "launches_outside_graph_per_step", "loaded_bytes_per_rank_ratio", "gathered_bytes_per_rank_ratio",
    "critic_syncs_per_micro_batch", "teacher_syncs_per_micro_batch",
]  # fmt: skip


def last_line(module: str) -> dict[str, Any]:
    """What it found, in JSON."""
    done = run_module(module)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def checked() -> subprocess.CompletedProcess[str]:
    """In a process of its own, as the others: a device must be known before the first backward pass."""
    return run_module("benchmarks.device_check")


@pytest.fixture(scope="module")
def counted(checked: subprocess.CompletedProcess[str]) -> dict[str, float]:
    found: dict[str, float] = json.loads(checked.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def seeded() -> dict[str, Any]:
    return last_line("tests.device.seeded")


@pytest.fixture(scope="module")
def threaded() -> dict[str, Any]:
    return last_line("tests.device.threaded")


@pytest.mark.thorough
def test_a_rank_samples_ahead_on_its_own_device(threaded: dict[str, Any]) -> None:
    assert threaded["there"] == threaded["here"]
    assert len(threaded["here"]) == 8


def test_a_thread_that_stays_on_the_first_device_is_seen(threaded: dict[str, Any]) -> None:
    said = "simulated:1 is worked on while simulated:0 is current, at rollouts/sampler/decode_batch.py:"
    assert threaded["left where it began"].startswith(said)


def test_a_step_is_recorded_on_the_device_of_its_tensors(threaded: dict[str, Any]) -> None:
    """On CUDA the recording would be empty, and every later step would return the first one's logits."""
    assert threaded["recorded by a new thread"] == "recorded"
    assert threaded["recorded where it began"] == "simulated:1 is recorded while simulated:0 is current"
    assert threaded["there, recorded"] == threaded["here"]


@pytest.mark.thorough
@pytest.mark.parametrize("what", [
    "dense", "mixture", "Routing Replay R2", "Routing Replay R3", "critic", "teacher", "teacher's distributions",
    "adapters",
])  # fmt: skip
def test_a_device_gives_what_the_cpu_gives(checked: subprocess.CompletedProcess[str], what: str) -> None:
    if what == "adapters":
        pytest.importorskip("peft")
    assert checked.returncode == 0, checked.stderr
    assert f"{what}: the tokens, log-probabilities, gradients and weights of the CPU" in checked.stdout


@pytest.mark.thorough
def test_the_last_line_has_every_number(counted: dict[str, float]) -> None:
    assert list(counted) == KEYS


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "most"), [
    ("kernels_compiled", 3), ("eager_attention", 0), ("weight_casts_per_step", 0), ("syncs_per_step", 0),
    ("syncs_per_micro_batch", 1), ("copy_syncs_per_large_micro_batch", 0), ("launches_per_layer_and_step", 16),
    ("launches_per_layer_and_step_with_adapters", 16), ("launches_outside_graph_per_step", 0.5),
    ("loaded_bytes_per_rank_ratio", 0.25),
    ("gathered_bytes_per_rank_ratio", 0.1876),  # 3/16, and words that say what comes next
    ("critic_syncs_per_micro_batch", 2), ("teacher_syncs_per_micro_batch", 1),
])  # fmt: skip
def test_a_ratchet(counted: dict[str, float], name: str, most: float) -> None:
    assert 0 <= counted[name] <= most


@pytest.mark.thorough
def test_a_run_in_bf16_compiles_no_attention_in_float32(checked: subprocess.CompletedProcess[str]) -> None:
    assert "attention kernels in the shortest run: 3, for torch.bfloat16; calls" in checked.stdout


@pytest.mark.thorough
def test_a_compaction_and_the_join_after_it_wait_four_times_at_most(seeded: dict[str, Any]) -> None:
    assert len(seeded["between compactions"]) > 3
    assert max(seeded["between compactions"]) <= 4


@pytest.mark.thorough
def test_a_critic_and_a_teacher_that_say_something_else_are_seen(seeded: dict[str, Any]) -> None:
    assert all(f"{what} off by " in seeded["another value"] for what in ("gradients", "values", "critic's weights"))
    assert seeded["another teacher"].startswith("gradients off by ")
    assert "teacher's log-probabilities off by " in seeded["another teacher"]


@pytest.mark.thorough
def test_without_a_fault_there_is_no_difference(seeded: dict[str, Any]) -> None:
    assert seeded["sound"] == ""


@pytest.mark.thorough
def test_an_index_that_stays_on_the_cpu_is_an_error_with_its_line(seeded: dict[str, Any]) -> None:
    assert seeded["stays here"].startswith("Expected all tensors to be on the same device: ge got simulated and cpu")
    assert "policy/attention/padded_kv_cache.py:" in seeded["stays here"]


def test_a_host_that_asks_every_token_is_seen(seeded: dict[str, Any]) -> None:
    waits = {k: n for k, n in seeded["asks every token"].items() if "rollouts/sampler/decode_batch.py" in k}
    assert sum(waits.values()) >= 9  # one a token


def test_copies_of_more_than_64_kib_from_pageable_memory_are_seen(seeded: dict[str, Any]) -> None:
    found = {k.rsplit(":", 1)[0]: n for k, n in seeded["pageable memory"].items()}
    assert found == {"copy to the device core/transfer.py": 3}  # of the rows, of the layout, of the masks


def test_a_selection_by_a_mask_is_seen(seeded: dict[str, Any]) -> None:
    assert {k.split(" loop/metrics/ratios.py")[0] for k in seeded["selects"]} == {"bool index", "bincount"}


def test_a_list_made_into_a_tensor_there_is_seen(seeded: dict[str, Any]) -> None:
    found = {k.rsplit(":", 1)[0] for k in seeded["makes there"]}
    assert "copy to the device rollouts/sampler/decoding.py" in found
    assert "repeat_interleave rollouts/sampler/decoding.py" in found


def test_a_mask_that_is_wrong_on_the_device_is_seen(seeded: dict[str, Any]) -> None:
    assert seeded["forgets prompts"] != ""
