"""Benchmarks that are run by hand: a short form of each, so that the numbers of a page can be measured again.

Not what they measure is asserted, but that they measure it: each figure is there, and is a positive number.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import ROOT
from tests.runs.processes import run_module

SHORT: dict[str, list[str]] = {
    "dealing": ["--rounds=2"],
    "dedup": ["--prompts=2000"],
    "evaluation": ["--answers", "200", "--characters=200", "--workers=1"],
    "growth": ["rows", "--rows", "200"],
    "invariant": ["--model=1m", "--rounds=2"],
    "metrics_overhead": ["--model=1m", "--rounds=2"],
    "rewards": [],
    "sandbox": ["--repeats=1"],
    "view": ["--updates=40", "--rollouts=400"],
}
OUTPUT = {"metrics_overhead": ["--json"], "view": ["--folder"]}
"""Benchmark -> options that name a file or folder; by default some write into the repository."""


def figures(printed: Any) -> Iterator[float]:
    """Every number in what was printed as JSON."""
    if isinstance(printed, dict):
        for value in printed.values():
            yield from figures(value)
    elif isinstance(printed, list):
        for value in printed:
            yield from figures(value)
    elif isinstance(printed, int | float):
        yield printed


@pytest.mark.long
@pytest.mark.parametrize("name", SHORT)
def test_short_form(name: str, tmp_path: Path) -> None:
    arguments = SHORT[name] + [f"{option}={tmp_path / 'out'}" for option in OUTPUT.get(name, [])]
    run = run_module(f"benchmarks.{name}", *arguments)
    assert run.returncode == 0, run.stderr
    lines = run.stdout.splitlines()
    starts = [i for i, line in enumerate(lines) if line in ("{", "[") or line.startswith('{"')]
    if starts:
        printed, _ = json.JSONDecoder().raw_decode("\n".join(lines[starts[0] :]))
        numbers = list(figures(printed))
        assert len(numbers) >= 2
        assert max(numbers) > 0
    else:
        rows = [line for line in lines if any(mark.isdigit() for mark in line)]  # a table, or a figure a line
        assert len(rows) >= 2, run.stdout


def test_every_benchmark_that_is_run_by_hand_has_a_short_form_or_a_test() -> None:
    benchmarks = {file.stem for file in (ROOT / "benchmarks").glob("*.py") if "__main__" in file.read_text()}
    users = [*(ROOT / "tests").rglob("test_*.py"), ROOT / "Makefile", ROOT / "benchmarks" / "__main__.py"]
    text = "\n".join(file.read_text() for file in users)
    untried = {name for name in benchmarks if not re.search(rf"\bbenchmarks(\.| import [^\n]*\b){name}\b", text)}
    assert untried - SHORT.keys() == set()
