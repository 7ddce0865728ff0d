"""What a sandbox costs: tests per second and core in it, against a plain ``python -I`` process per test.

    python benchmarks/sandbox.py --output benchmarks/results/sandbox.json

Only programs of this file are run. Costs are CPU seconds of all processes involved (the one that starts them, the
sandbox, the tests), so that they hold on a busy machine; wall-clock times are shown next to them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from gspo_lightning.errors import UserError
from gspo_lightning.rewards import CodeExecutor
from gspo_lightning.sandbox import Kind, choose

PROGRAMS = {
    "empty": ("print(input())", "7", "7"),
    "imports": (
        "import sys, collections, heapq, math, itertools, functools\nprint(sum(map(int, sys.stdin.read().split())))",
        "3 4",
        "7",
    ),
}
"""Name -> program, input, output."""


def cpu() -> float:
    """CPU seconds of this process and of all children that have ended."""
    mine, theirs = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return mine.ru_utime + mine.ru_stime + theirs.ru_utime + theirs.ru_stime


def plain(program: str, text: str, expected: str, tests: int) -> None:
    """A ``python -I`` process per test, by the interpreter that runs this."""
    for _ in range(tests):
        found = subprocess.run([sys.executable, "-I", "-c", program], input=text, capture_output=True, text=True)
        assert found.stdout.strip() == expected, found.stderr


def sandboxed(executor: CodeExecutor) -> Callable[[str, str, str, int], None]:
    """All tests of a program through the reward."""

    def run(program: str, text: str, expected: str, tests: int) -> None:
        answer = {"type": "stdin", "tests": [{"input": text, "output": expected}] * tests}
        score = executor.score(program, answer)
        assert score.reward == 1.0, score

    return run


def measure(run: Callable[[str, str, str, int], None], name: str, tests: int, repeats: int) -> dict[str, float]:
    """Milliseconds of CPU and wall clock a test; the median over programs."""
    program = PROGRAMS[name]
    run(*program, 1)
    used, walls = [], []
    for _ in range(repeats):
        before, begun = cpu(), time.perf_counter()
        run(*program, tests)
        used.append((cpu() - before) / tests * 1e3)
        walls.append((time.perf_counter() - begun) / tests * 1e3)
    return {"cpu_ms": statistics.median(used), "wall_ms": statistics.median(walls)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=30, help="programs per cell")
    parser.add_argument("--output", type=Path, help="JSON file")
    options = parser.parse_args()
    runners: dict[str, Callable[[str, str, str, int], None]] = {"python -I": plain}
    for kind in (Kind.BUBBLEWRAP, Kind.LANDLOCK):
        try:
            choose(kind.value)
        except UserError as error:
            print(f"{kind} is left out: {error.problem}")
            continue
        runners[kind.value] = sandboxed(CodeExecutor(isolation=kind.value))
    rows: list[dict[str, Any]] = []
    for name in PROGRAMS:
        for tests in (1, 10):
            for runner, run in runners.items():
                found = measure(run, name, tests, options.repeats)
                rows.append({"program": name, "tests": tests, "runner": runner, **found})
                base = next(r for r in rows if (r["program"], r["tests"]) == (name, tests))
                rows[-1] |= {"tests_per_cpu_s": 1e3 / found["cpu_ms"], "ratio": found["cpu_ms"] / base["cpu_ms"]}
    _show(rows)
    if options.output:
        report = {
            "command": f"python benchmarks/sandbox.py --repeats {options.repeats}",
            "hardware": f"{platform.machine()}, {_processor()}, {os.cpu_count()} CPUs, root: {os.geteuid() == 0}",
            "versions": {
                "kernel": platform.release(),
                "python": platform.python_version(),
                "sandbox_python": choose().python.executable.rpartition("/")[2],
                "bubblewrap": subprocess.run(["bwrap", "--version"], capture_output=True, text=True).stdout.strip(),
            },
            "load_average": os.getloadavg()[0],
            "rows": rows,
        }
        options.output.write_text(json.dumps(report, indent=2) + "\n")


def _show(rows: list[dict[str, Any]]) -> None:
    table = Table(title="a test in a sandbox against a process of its own")
    for heading in ("program", "tests", "runner", "CPU ms a test", "tests a CPU second", "times plain", "wall ms"):
        table.add_column(heading, justify="left" if heading in ("program", "runner") else "right")
    for row in rows:
        table.add_row(
            row["program"], str(row["tests"]), row["runner"], f"{row['cpu_ms']:.1f}",
            f"{row['tests_per_cpu_s']:.0f}", f"{row['ratio']:.2f}", f"{row['wall_ms']:.0f}",
        )  # fmt: skip
    Console().print(table)


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


if __name__ == "__main__":
    main()
