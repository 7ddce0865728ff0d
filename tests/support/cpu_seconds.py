"""CPU seconds of every test, its child processes included: wall time says little on a busy machine."""

from __future__ import annotations

import contextlib
import glob
import json
import os
import resource
import time
from collections.abc import Generator
from pathlib import Path

import pytest

__all__ = ["FILE_VARIABLE", "CpuSeconds", "calibrate"]

FILE_VARIABLE = "GSPO_TEST_CPU"
"""Of the environment: a JSON file that the session writes at its end."""


TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds() -> float:
    """User and system time of this process and of all its descendants: those that have ended, and those that run."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages) + sum(map(_of_a_child, _children("self")))


def _of_a_child(pid: str) -> float:
    """With its own children; a fork server, for one, lives as long as the session."""
    try:
        fields = Path("/proc", pid, "stat").read_bytes().rpartition(b")")[2].split()
    except OSError:  # it has just ended
        return 0.0
    return sum(map(int, fields[11:15])) / TICKS + sum(map(_of_a_child, _children(pid)))


def _children(pid: str) -> list[str]:
    pids: list[str] = []
    for file in glob.glob(f"/proc/{pid}/task/*/children"):
        with contextlib.suppress(OSError):  # a thread that has just ended
            pids += Path(file).read_text().split()
    return pids


BETWEEN = 50
"""Tests between two calibrations of a process: a machine is not equally fast all the time."""


def calibrate() -> float:
    """CPU seconds of a fixed piece of work, a mix of Python and small tensors: how fast the machine is now."""
    import torch  # not above: see tests/conftest.py

    begun = time.process_time()
    weights = torch.linspace(0, 1, 64 * 64).view(64, 64)
    for _ in range(100):
        (weights @ weights).tanh().sum().item()
        json.loads(json.dumps([{"number": number, "text": str(number)} for number in range(200)]))
    return time.process_time() - begun


class CpuSeconds:
    """A plug-in of pytest that measures all tests. A fixture's time counts for the first test that uses it."""

    def __init__(self, config: pytest.Config) -> None:
        self.worker = hasattr(config, "workerinput")
        self.config = config
        self.tests: dict[str, dict[str, float]] = {}
        self.calibrations: list[float] = []
        self.processes: list[float] = []
        self.ran = 0

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, object, object]:
        return (yield from _measured(item, "setup"))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        return (yield from _measured(item, "call"))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, object, object]:
        self.ran += 1
        if self.ran % BETWEEN == 1:
            self.calibrations.append(calibrate())
        return (yield from _measured(item, "teardown"))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not self.worker and report.when == "teardown":
            spent = {name: value for name, value in report.user_properties if name.startswith("cpu_")}
            self.tests[report.nodeid] = {name.removeprefix("cpu_"): value for name, value in spent.items()}

    def pytest_sessionfinish(self) -> None:
        if self.ran:
            self.processes.append(cpu_seconds())
        if self.worker:
            self.config.workeroutput["cpu_seconds"] = (self.calibrations, self.processes)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object) -> None:
        calibrations, processes = getattr(node, "workeroutput", {}).get("cpu_seconds", ((), ()))
        self.calibrations += calibrations
        self.processes += processes

    def pytest_unconfigure(self) -> None:
        if not self.worker:
            measurements = {"calibrations": self.calibrations, "processes": self.processes, "tests": self.tests}
            Path(os.environ[FILE_VARIABLE]).write_text(json.dumps(measurements, indent=0) + "\n", encoding="utf-8")


def _measured(item: pytest.Item, phase: str) -> Generator[None, object, object]:
    begun = cpu_seconds()
    try:
        return (yield)
    finally:
        item.user_properties.append((f"cpu_{phase}", round(cpu_seconds() - begun, 4)))
