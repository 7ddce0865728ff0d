"""The parts of ``make gpu-check`` run apart: what one returns, how one fails, and attention without a kernel."""

from __future__ import annotations

import importlib.util
import os
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.gpu_check import PROCESSES, _answer, apart
from benchmarks.gpu_parts import Bench
from benchmarks.gpu_vllm import check_engine, check_ways


def process() -> dict[str, int]:
    return {"pid": os.getpid()}


def fails() -> None:
    raise ValueError("no such kernel")


def dies() -> None:
    os._exit(7)


def attends_without_a_kernel() -> None:
    warnings.warn("flex_attention called without torch.compile() - this will use an unfused ...", stacklevel=1)


def answered(function: Callable[[], Any]) -> Any:
    """What a part's process sends, without the process."""
    ours, theirs = PROCESSES.Pipe(duplex=False)
    with ours, theirs, warnings.catch_warnings():
        _answer(theirs, function)
        return ours.recv()


def test_a_part_that_fails_or_attends_without_a_kernel_says_so() -> None:
    assert answered(process) == {"pid": os.getpid()}
    found = answered(fails)
    assert found["error"] == "ValueError('no such kernel')"
    assert "in fails" in found["traceback"]
    assert answered(attends_without_a_kernel)["error"].startswith("UserWarning('flex_attention called without")


@pytest.mark.long
def test_each_part_has_a_process_of_its_own_and_cannot_end_the_others() -> None:
    first, second = apart(process), apart(process)
    assert len({first["pid"], second["pid"], os.getpid()}) == 3
    assert apart(fails)["error"] == "ValueError('no such kernel')"
    assert apart(dies)["error"] == "its process ended with exit code 7"


def test_parts_about_vllm_say_that_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for part in (check_engine, check_ways):
        assert part(Bench.on(cuda=False)) == {"skipped": "vllm is not installed"}
