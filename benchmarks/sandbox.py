"""What a sandbox costs: tests per second and core in it, against a process per test, for Python and C++.

    python benchmarks/sandbox.py --output benchmarks/results/sandbox.json

Only programs of this file are run. Costs are CPU seconds of all processes involved (the one that starts them, the
sandbox, the tests), so that they hold on a busy machine; wall-clock times are shown next to them. A sandbox serves
program after program: what it takes to start and to end one is shared by the programs of a cell. Python is compared
with ``python -I`` and, which is the least there is, ``python -I -S``; C++ with g++ and an executable outside, where
every program is compiled.
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
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from gspo_lightning.core.errors import UserError
from gspo_lightning.rewards import CodeExecutor
from gspo_lightning.rewards.sandbox import Kind, choose, cpp
from gspo_lightning.rewards.sandbox.warm import close_waiting

PROGRAMS = {
    "empty": ("print(input())", "7", "7"),
    "imports": (
        "import sys, collections, heapq, math, itertools, functools\nprint(sum(map(int, sys.stdin.read().split())))",
        "3 4",
        "7",
    ),
}
"""Name -> program, input, output."""
CPP = {
    "iostream": ("#include <iostream>\nint main() { int a; std::cin >> a; std::cout << a; }\n", "7", "7"),
    "bits/stdc++.h": (
        "#include <bits/stdc++.h>\nusing namespace std;\nint main() { map<int, int> m; int a; cin >> a; m[a]++; "
        "for (auto& p : m) cout << p.first; }\n",
        "7",
        "7",
    ),
}
"""The same in C++."""


def cpu() -> float:
    """CPU seconds of this process and of all children that have ended."""
    mine, theirs = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return mine.ru_utime + mine.ru_stime + theirs.ru_utime + theirs.ru_stime


def plain(*options: str) -> Callable[[str, str, str, int], None]:
    """A process per test, by the interpreter that runs this."""

    def run(program: str, text: str, expected: str, tests: int) -> None:
        for _ in range(tests):
            found = subprocess.run(
                [sys.executable, *options, "-c", program], input=text, capture_output=True, text=True
            )
            assert found.stdout.strip() == expected, found.stderr

    return run


def native(program: str, text: str, expected: str, tests: int) -> None:
    """g++, and a process per test."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["g++", "-std=gnu++20", "-O2", "-x", "c++", "-", "-o", f"{folder}/program"]
        subprocess.run(command, input=program, text=True, check=True)
        for _ in range(tests):
            found = subprocess.run([f"{folder}/program"], input=text, capture_output=True, text=True)
            assert found.stdout.strip() == expected, found.stderr


def sandboxed(executor: CodeExecutor, language: str = "python") -> Callable[[str, str, str, int], None]:
    """All tests of a program through the reward."""

    def run(program: str, text: str, expected: str, tests: int) -> None:
        cpp.forget()
        tested = {"type": "stdin", "tests": [{"input": text, "output": expected}] * tests}
        answer = {**tested, "language": language}
        score = executor.score(program, answer)
        assert score.reward == 1.0, score

    return run


def measure(
    run: Callable[[str, str, str, int], None], program: tuple[str, str, str], tests: int, repeats: int
) -> dict[str, float]:
    """Milliseconds of CPU and wall clock a test: the median of three rounds of programs, each with a fresh sandbox."""
    run(*program, 1)
    close_waiting()
    used, walls = [], []
    for _ in range(3):
        before, begun = cpu(), time.perf_counter()
        for _ in range(repeats):
            run(*program, tests)
        close_waiting()
        used.append((cpu() - before) / repeats / tests * 1e3)
        walls.append((time.perf_counter() - begun) / repeats / tests * 1e3)
    return {"cpu_ms": statistics.median(used), "wall_ms": statistics.median(walls)}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=20, help="programs per cell and round; an eighth in C++")
    parser.add_argument("--output", type=Path, help="JSON file")
    options = parser.parse_args(argv)
    runners = {"python -I": plain("-I"), "python -I -S": plain("-I", "-S")}
    compilers: dict[str, Callable[[str, str, str, int], None]] = {"g++": native}
    for kind in (Kind.BUBBLEWRAP, Kind.LANDLOCK):
        try:
            choose(kind.value)
        except UserError as error:
            print(f"{kind} is left out: {error.problem}")
            continue
        executor = CodeExecutor(isolation=kind.value)
        runners[kind.value] = sandboxed(executor)
        reason = cpp.missing(executor.chosen)
        if reason:
            print(f"C++ in {kind} is left out: {reason}")
        else:
            compilers[kind.value] = sandboxed(executor, "cpp")
    rows: list[dict[str, Any]] = []
    fewer = max(1, options.repeats // 8)
    for programs, ways, repeats in (
        (PROGRAMS, runners, options.repeats),
        (CPP, compilers if len(compilers) > 1 else {}, fewer),
    ):
        for name in programs:
            for tests in (1, 10):
                for runner, run in ways.items():
                    found = measure(run, programs[name], tests, repeats)
                    rows.append({"program": name, "tests": tests, "runner": runner, **found})
                    base = next(r for r in rows if (r["program"], r["tests"]) == (name, tests))
                    rows[-1] |= {"tests_per_cpu_s": 1e3 / found["cpu_ms"], "ratio": found["cpu_ms"] / base["cpu_ms"]}
    _show(rows)
    if options.output:
        report = {
            "command": f"python -m benchmarks.sandbox --repeats {options.repeats}",
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
