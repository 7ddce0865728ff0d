"""Our own records in each set's layout, evaluated from their files with ``--data``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gspo_lightning.cli import main
from gspo_lightning.report.statistics.rating import rating
from gspo_lightning.training.suites.suite import shipped
from tests.training.suites.made_up import Sum, solved
from tests.training.suites.write_records import CONTESTS, FOLDER, records


def test_the_files_are_what_the_generator_writes() -> None:
    there = {str(f.relative_to(FOLDER)): f.read_text(encoding="utf-8") for f in FOLDER.rglob("*") if f.is_file()}
    assert there == records(), "python -m tests.training.suites.write_records"
    assert {name.partition("/")[0].removesuffix(".jsonl") for name in there} == shipped().keys()


def rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in records()[name].splitlines()]


def answers(*suites: str) -> Iterator[dict[str, Any]]:
    """A right and a wrong answer to every problem; those of a mathematical suite write a number in two ways."""
    for suite in suites:
        for i, row in enumerate(rows(f"{suite}.jsonl")):
            identifier = row.get("id", row.get("unique_id", row.get("problem_idx")))
            value = row["answer"]
            written = value if suite == "math500" else f"{int(value)}.0" if i % 2 else f"{int(value):03d}"
            yield {"suite": suite, "id": identifier, "sample": 0, "completion": rf"So \boxed{{{written}}}."}
            yield {"suite": suite, "id": identifier, "sample": 1, "completion": r"So \boxed{-1}."}


def evaluate(tmp_path: Path, lines: Iterator[dict[str, Any]] | list[dict[str, Any]], *suites: str) -> dict[str, Any]:
    file = tmp_path / "answers.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    words = [f"--suite={suite}" for suite in suites]
    output = tmp_path / "out"
    argv = ["evaluate", *words, f"--data={FOLDER}", f"--completions={file}", f"--output={output}", "--workers=1"]
    assert main(argv) == 0
    found: dict[str, Any] = json.loads((output / "results.json").read_text())
    return found


@pytest.mark.thorough
def test_mathematical_suites(tmp_path: Path) -> None:
    suites = ("aime2024", "aime2025", "aime2026", "math500")
    found = evaluate(tmp_path, answers(*suites), *suites)
    for suite in suites:
        numbers = found[suite]
        assert numbers["avg@2"]["value"] == 0.5
        assert numbers["pass@2"]["value"] == 1.0
        assert numbers["maj@2"]["value"] == 0.5
        assert numbers["no_answer"]["value"] == 0.0
        assert {"value", "low", "high", "n"} <= numbers["avg@2"].keys()
    assert {f"avg@2/{level}" for level in range(1, 6)} <= found["math500"].keys()


def test_zebralogic_accuracy_of_our_own_puzzles(tmp_path: Path) -> None:
    puzzles = rows("zebralogic.jsonl")
    lines = [{"id": puzzle["id"], "sample": 0, "completion": solved(puzzle)} for puzzle in puzzles[:-1]]
    lines.append({"id": puzzles[-1]["id"], "sample": 0, "completion": "I give up."})
    numbers = evaluate(tmp_path, lines, "zebralogic")["zebralogic"]
    assert numbers["puzzle_accuracy"]["value"] == pytest.approx(5 / 6)
    assert numbers["cell_accuracy"]["value"] == pytest.approx((4 + 8 + 9 + 16 + 20) / (4 + 8 + 9 + 16 + 20 + 36))
    assert numbers["no_answer"]["value"] == pytest.approx(1 / 6)
    sizes = {name.partition("/")[2]: one["n"] for name, one in numbers.items() if name.startswith("puzzle_accuracy/")}
    assert sizes == {"small": 3, "medium": 1, "large": 1, "x-large": 1}  # 2!^2, 2!^4, 3!^3; 4!^4; 5!^4; 6!^6 ways


@pytest.mark.usefixtures("numpy_for_programs")
def test_livecodebench_accuracy_of_our_own_problems(tmp_path: Path) -> None:
    lines = [
        {"id": row["question_id"], "completion": Sum(i).right("python")}
        for i, row in enumerate(rows("livecodebench.jsonl"))
    ]
    numbers = evaluate(tmp_path, lines, "livecodebench")["livecodebench"]
    assert (numbers["avg@1"]["value"], numbers["avg@1"]["n"]) == (1.0, 6)


@pytest.mark.usefixtures("numpy_for_programs")
def test_codeforces_rating_of_our_own_contests(tmp_path: Path) -> None:
    """Of the first contest A and B are solved: 1,500 points, nobody stands before us. Of the second one A: 1 problem.

    Everybody solved 2 of the second contest, so that all 300 stand before us.
    """
    lines = [
        {"id": f"{number}/{index}", "completion": Sum(10 * number + place).right("python")}
        for number, points in CONTESTS.items()
        for place, index in enumerate(list(points)[:-1])
    ]
    found = evaluate(tmp_path, lines, "codeforces")
    others = [1000.0 + 5 * j for j in range(300)]
    numbers = found["codeforces"]["rating"]
    assert numbers["value"] == pytest.approx((rating(1, others) + rating(301, others)) / 2)
    assert numbers["n"] == 2
    assert numbers["low"] < numbers["value"] < numbers["high"]
    notes = found["run"]["notes"]["codeforces"]
    assert any("contest 1000: no answers to C" in note for note in notes)
