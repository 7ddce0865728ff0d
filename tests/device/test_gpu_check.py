"""The parts of ``make gpu-check`` run apart: what one returns, how one fails, and attention without a kernel."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import gpu_check
from benchmarks.gpu_check import PROCESSES, Part, _answer, apart
from benchmarks.gpu_curve import joined, outcomes
from benchmarks.gpu_parts import Bench
from benchmarks.gpu_steps import measure_step
from benchmarks.gpu_vllm import check_engine, check_ways
from benchmarks.ours import Ours
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
    """One is done, one reads what the file says then, one fails, and one runs only when it is named."""
    return [
        Part("first", lambda _: {"found": 1}, 60, usual=True),
        Part("reader", lambda _: {"seen": list(json.loads(output.read_text()))}, 5, usual=True),
        Part("broken", lambda _: fails(), 0, usual=True),
        Part("unusual", lambda _: {"found": 2}, 7),
    ]


def test_the_file_is_complete_after_every_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = tmp_path / "out.json"
    monkeypatch.setattr(gpu_check, "_parts", lambda *_: writes(output))
    monkeypatch.setattr(gpu_check, "apart", lambda function, limit: answered(function))
    assert gpu_check.main(["--toy", "--output", str(output)]) == 1
    found = json.loads(output.read_text())
    assert found["first"]["found"] == 1
    assert found["reader"]["seen"] == ["ok", "failed", "seconds", "about", "first"]
    assert (found["ok"], found["failed"]) == (False, ["broken"])
    assert "unusual" not in found
    assert gpu_check.main(["reader", "--toy", "--fresh", "--output", str(output)]) == 0
    assert json.loads(output.read_text())["reader"]["seen"] == ["ok", "failed", "seconds", "about"]
    assert list(tmp_path.iterdir()) == [output]
    with pytest.raises(SystemExit):
        gpu_check.main(["rider", "--toy", "--output", str(output)])


def test_a_second_call_goes_on_and_says_what_to_expect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output, runs = tmp_path / "out.json", list[str]()

    def parts(*_: Any) -> list[Part]:
        def counted(part: Part) -> Part:
            return dataclasses.replace(part, function=lambda bench: runs.append(part.name) or part.function(bench))

        return [counted(part) for part in writes(output)]

    monkeypatch.setattr(gpu_check, "_parts", parts)
    monkeypatch.setattr(gpu_check, "apart", lambda function, limit: answered(function))
    arguments = ["--toy", "--output", str(output)]
    assert gpu_check.main(arguments) == 1
    said = capsys.readouterr().out
    assert "expected seconds: first 60, reader 5, broken 0\ntogether 65 of a budget of 780" in said
    assert gpu_check.main([*arguments, "first", "broken", "unusual"]) == 1
    said = capsys.readouterr().out
    assert runs == ["first", "reader", "broken", "broken", "unusual"]
    assert f"kept from {output}: first, reader" in said
    assert "together 7 of a budget of 780" in said
    found = json.loads(output.read_text())
    assert (found["first"]["found"], found["unusual"]["found"], found["failed"]) == (1, 2, ["broken"])
    found["about"]["device"] = "another card"
    output.write_text(json.dumps(found))
    gpu_check.main([*arguments, "first"])
    assert runs[5:] == ["first"]


def test_the_usual_parts_take_13_minutes() -> None:
    parts = gpu_check._parts()
    assert sum(part.seconds for part in parts if part.usual) <= 780
    assert {"step_1.7b_skewed", "rollouts", "curve", "step_8b_lora", "tests"} <= {p.name for p in parts if p.usual}


KILLED = """
import functools, pathlib, sys, time
from benchmarks.gpu_check import apart
from tests.device.test_gpu_check import works_on
apart(functools.partial(works_on, pathlib.Path(sys.argv[1])), 60)
"""


def works_on(folder: Path) -> None:
    """Leave the numbers of this process and of one that it starts, and never end."""
    child = subprocess.Popen(["sleep", "60"])
    (folder / "half").write_text(f"{os.getpid()} {child.pid}")
    (folder / "half").rename(folder / "numbers")
    time.sleep(60)


def lives(number: int) -> bool:
    """True for a process that runs; a dead one that nobody has asked about does not."""
    try:
        return "(zombie)" not in Path(f"/proc/{number}/status").read_text(encoding="utf-8")
    except OSError:
        return False


@pytest.mark.thorough
def test_a_check_that_is_killed_leaves_nothing_on_the_device(tmp_path: Path) -> None:
    caller = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], cwd=ROOT)
    numbers: list[int] = []
    try:
        wait_until(lambda: (tmp_path / "numbers").exists())
        numbers = [int(word) for word in (tmp_path / "numbers").read_text().split()]
        assert all(lives(number) for number in numbers)
        caller.kill()
        wait_until(lambda: not any(lives(number) for number in numbers))
    finally:
        for number in (caller.pid, *numbers):
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        caller.wait()


def wait_until(true: Callable[[], bool]) -> None:
    """Wait for two minutes at most."""
    end = time.monotonic() + 120
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_names_of_failed_tests_are_in_the_json(tmp_path: Path) -> None:
    (tmp_path / "test_two.py").write_text(
        "import pytest\n\ndef test_good():\n    pass\n\n@pytest.mark.skip\ndef test_left():\n    pass\n\n"
        "@pytest.mark.parametrize('n', [1, 2])\ndef test_bad(n):\n    assert n == 1\n"
    )
    line = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_two.py", "--junitxml", "out.xml"]
    subprocess.run(line, cwd=tmp_path, timeout=120, capture_output=True, check=False)
    found = outcomes((tmp_path / "out.xml").read_text())
    assert (found["tests"], found["skipped_tests"], found["ok"]) == (4, 1, False)
    assert list(found["failed_tests"]) == ["test_two::test_bad[2]"]
    assert "assert 2 == 1" in found["failed_tests"]["test_two::test_bad[2]"]


def test_a_model_in_pieces_is_joined_in_order(tmp_path: Path) -> None:
    pieces = [tmp_path / "b.00", tmp_path / "a.01"]
    for piece, content in zip(pieces, (b"GG", b"UF"), strict=True):
        piece.write_bytes(content)
    assert joined(pieces, tmp_path).read_bytes() == b"GGUF"


@pytest.mark.thorough
def test_budgets_are_tried_on_one_rollout_and_plans_are_added_later(tmp_path: Path) -> None:
    output = tmp_path / "out.json"
    with torch.random.fork_rng():
        step = measure_step(Bench.on(cuda=False), "1.7b", "skewed", budgets=(64, 32))
    assert {budget: v["train_s"] > 0 for budget, v in step["ours"]["budgets"].items()} == {"64": True, "32": True}
    output.write_text(json.dumps({"about": {"device": "cpu (toy sizes)"}, "step": step}))
    assert gpu_check.main(["--plans", "--output", str(output)]) == 0
    planned = json.loads(output.read_text())["step"]["ours"]["budgets"]
    assert planned["64"]["planned_mib"] > planned["32"]["planned_mib"] > 0
    assert planned["64"]["planned_for_these_lengths_mib"] <= planned["64"]["planned_mib"]


@pytest.mark.thorough
def test_a_budget_that_does_not_fit_is_tried_again_without_what_sampling_keeps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The copy of the weights of an 8B model is 15 GiB, which a run would free."""
    original, kept = Ours.train_on_policy, []

    class Copy:
        nbytes, busy = 1, False

        def release(self) -> None:
            kept.append(self)

    def full(self: Ours, groups: Any, phases: Any) -> None:
        if not kept:
            self.policy.decoding.kept = Copy()
        if self.policy.decoding.kept is not None:
            raise torch.OutOfMemoryError("CUDA out of memory")
        original(self, groups, phases)

    monkeypatch.setattr(Ours, "train_on_policy", full)
    with torch.random.fork_rng():
        step = measure_step(Bench.on(cuda=False), "1.7b", "skewed", budgets=(64,))
    assert step["ours"]["budgets"]["64"]["train_s"] > 0
    assert len(kept) == 1


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


@pytest.mark.long
def test_every_part_passes_in_toy_form(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.gpu_check", "--toy", "--output", str(tmp_path / "out.json")]
    done = subprocess.run(command, cwd=ROOT, timeout=1200, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["curve"]["updates"] > 0
    assert found["tests"]["tests"] > 0
    optional = [part.name for part in gpu_check._parts() if not part.usual]
    assert set(optional).isdisjoint(found)
    done = subprocess.run([*command, *optional], cwd=ROOT, timeout=1200, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["ipc"] == {"expandable": "ok", "part_s": found["ipc"]["part_s"]}
    assert found["fit"]["updates"] == [12, 12]
    assert found["fit"]["largest_difference_of_weights"] == 0
    assert found["fsdp2"]["gradient_off_by"] < 0.02
    assert found["layers_8b"]["phases"]["backward pass"]["measured_mib"] > 0


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
