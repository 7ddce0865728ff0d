"""The parts of ``make gpu-check`` run apart: what one returns, how one fails, and attention without a kernel."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import gpu_check
from benchmarks.gpu_check import PROCESSES, Part, _answer, apart
from benchmarks.gpu_parts import Bench
from benchmarks.gpu_vllm import check_engine, check_ways
from tests import ROOT


def process() -> dict[str, int]:
    return {"pid": os.getpid()}


def fails() -> None:
    raise ValueError("no such kernel")


def dies() -> None:
    os._exit(7)


def hangs() -> None:
    time.sleep(1000)


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


def writes(output: Path) -> list[Part]:
    """Three parts: one is done, one reads what the file says then, one fails."""
    return [
        Part("first", lambda _: {"found": 1}, 60),
        Part("reader", lambda _: {"seen": list(json.loads(output.read_text()))}, 0),
        Part("broken", lambda _: fails(), 0),
    ]


def test_the_file_is_complete_after_every_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = tmp_path / "out.json"
    monkeypatch.setattr(gpu_check, "_parts", lambda: writes(output))
    monkeypatch.setattr(gpu_check, "apart", lambda function, limit: answered(function))
    assert gpu_check.main(["--toy", "--output", str(output)]) == 1
    found = json.loads(output.read_text())
    assert found["first"]["found"] == 1
    assert found["reader"]["seen"] == ["ok", "failed", "seconds", "about", "first"]
    assert (found["ok"], found["failed"]) == (False, ["broken"])
    assert gpu_check.main(["reader", "--toy", "--output", str(output)]) == 0
    assert json.loads(output.read_text())["reader"]["seen"] == ["ok", "failed", "seconds", "about"]
    assert list(tmp_path.iterdir()) == [output]
    with pytest.raises(SystemExit):
        gpu_check.main(["rider", "--toy", "--output", str(output)])


def test_a_part_that_does_not_fit_is_skipped_and_none_may_take_ten_minutes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[float] = []
    monkeypatch.setattr(gpu_check, "apart", lambda function, limit: limits.append(limit) or answered(function))
    for budget, expected in ((30.0, 0), (90.0, 1), (5000.0, 1)):
        run = gpu_check.Run(Bench(torch.device("cpu"), toy=False), tmp_path / "out.json", budget)
        run.part(writes(tmp_path)[0])
        assert len(run.parts) - ("skipped" in run.parts["first"]) == expected
    assert limits[0] == pytest.approx(90.0, abs=5.0)
    assert limits[1] == 600.0
    assert sum(part.seconds for part in gpu_check._parts()) < 1800


@pytest.mark.long
def test_every_part_passes_in_toy_form(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.gpu_check", "--toy", "--output", str(tmp_path / "out.json")]
    done = subprocess.run(command, cwd=ROOT, timeout=1200, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["ipc"] == {"expandable": "ok", "part_s": found["ipc"]["part_s"]}
    assert found["fit"]["updates"] == [12, 12]
    assert found["fit"]["largest_difference_of_weights"] == 0
    assert found["fsdp2"]["gradient_off_by"] < 0.02
    assert found["layers_8b"]["backward pass"]["planned_mib"] > 0


@pytest.mark.long
def test_each_part_has_a_process_of_its_own_and_cannot_end_the_others() -> None:
    first, second = apart(process), apart(process)
    assert len({first["pid"], second["pid"], os.getpid()}) == 3
    assert apart(fails)["error"] == "ValueError('no such kernel')"
    assert apart(dies)["error"] == "its process ended with exit code 7"
    assert apart(hangs, 0.5)["error"] == "took more than 0 s"


def test_parts_about_vllm_say_that_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for part in (check_engine, check_ways):
        assert part(Bench.on(cuda=False)) == {"skipped": "vllm is not installed"}
