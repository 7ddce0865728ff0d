"""Suites of programs, from files in the sets' layouts: LiveCodeBench, and Codeforces with its rating."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gspo_lightning.cli import main
from gspo_lightning.report.statistics.rating import rating
from gspo_lightning.rewards.sandbox.cpp import missing
from gspo_lightning.rewards.sandbox.probe import choose
from tests.training.suites.made_up import Sum, codeforces, contest, livecodebench

pytestmark = pytest.mark.usefixtures("numpy_for_programs")


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def evaluate(suite: str, data: Path, answers: Path, output: Path, code: int = 0) -> dict[str, Any]:
    words = [f"--suite={suite}", f"--data={data}", f"--completions={answers}", f"--output={output}", "--workers=1"]
    assert main(["evaluate", *words]) == code
    found: dict[str, Any] = json.loads((output / "results.json").read_text()) if code == 0 else {}
    return found


@pytest.fixture
def compiler() -> None:
    if why := missing(choose("auto")):
        pytest.skip(why)


def every_kind(count: int, tmp_path: Path, left_out: str = "") -> None:
    """A right program and some wrong ones to each problem, in two languages: 2 of 10 (or 8) are right."""
    problems = [Sum(number) for number in range(count)]
    data = write(tmp_path / "data" / "livecodebench.jsonl", [livecodebench(p) for p in problems]).parent
    rows = []
    for problem in problems:
        texts = []
        for language in ("python", "cpp"):
            wrong = {kind: text for kind, text in problem.wrong(language).items() if kind != left_out}
            texts += [problem.right(language), *wrong.values()]
        rows += [
            {"id": livecodebench(problem)["question_id"], "sample": k, "completion": t} for k, t in enumerate(texts)
        ]
    found = evaluate("livecodebench", data, write(tmp_path / "answers.jsonl", rows), tmp_path / "out")
    numbers, k = found["livecodebench"], len(texts)
    assert numbers[f"avg@{k}"]["value"] == pytest.approx(2 / k)
    assert numbers[f"pass@{k}"]["value"] == 1.0
    assert {f"avg@{k}/{level}" for level in ("easy", "medium", "hard")[: min(3, count)]} <= numbers.keys()
    lines = [json.loads(line) for line in (tmp_path / "out" / "samples.jsonl").read_text().splitlines()]
    assert {line["sample"] for line in lines if line["value"] == 1.0} == {0, k // 2}
    beyond = [line["reason"] for line in lines if line["sample"] in (2, k // 2 + 2)]  # right on the public test only
    assert all("test 2 of 3" in reason for reason in beyond)
    assert numbers["no_answer"]["value"] == 0.0  # a wrong program is an answer


@pytest.mark.usefixtures("compiler")
def test_right_and_wrong_programs_in_two_languages(tmp_path: Path) -> None:
    every_kind(1, tmp_path, left_out="no end")


@pytest.mark.long
@pytest.mark.usefixtures("compiler")
def test_forty_problems(tmp_path: Path) -> None:
    every_kind(40, tmp_path)


@pytest.mark.thorough
def test_windows_and_faulty_problems(tmp_path: Path) -> None:
    """Problems 9 and 10 are of October and November 2024; abc311_c is on the set's list of errata."""
    rows = [livecodebench(Sum(number)) for number in (8, 9, 10)]
    rows[2]["question_id"] = "abc311_c"
    data = write(tmp_path / "data" / "livecodebench.jsonl", rows).parent
    answers = [
        {"id": rows[1]["question_id"], "completion": Sum(9).right("python")},
        {"id": "abc311_c", "completion": "no program"},
    ]
    found = evaluate("livecodebench:2024-10..", data, write(tmp_path / "a.jsonl", answers), tmp_path / "out")
    numbers = found["livecodebench"]
    assert (numbers["avg@1"]["value"], numbers["avg@1"]["n"]) == (0.5, 2)
    assert numbers["avg@1/without_faulty"]["value"] == 1.0
    assert numbers["no_answer"]["value"] == 0.5
    assert found["run"]["suites"]["livecodebench"]["window"] == "2024-10.."


def test_private_tests_that_are_no_data_run_nothing(tmp_path: Path) -> None:
    import base64
    import os
    import pickle
    import zlib

    class Harm:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.system, (f"touch {tmp_path / 'marker'}",)

    row = livecodebench(Sum(1))
    row["private_test_cases"] = base64.b64encode(zlib.compress(pickle.dumps(Harm()))).decode()
    sound = livecodebench(Sum(2))
    data = write(tmp_path / "data" / "livecodebench.jsonl", [row, sound]).parent
    rows = [{"id": r["question_id"], "completion": Sum(2).right("python")} for r in (row, sound)]
    found = evaluate("livecodebench", data, write(tmp_path / "a.jsonl", rows), tmp_path / "out")
    assert not (tmp_path / "marker").exists()
    assert found["livecodebench"]["avg@1"]["n"] == 1
    assert any("1 of 2 problems have no verdict" in note for note in found["run"]["notes"]["livecodebench"])


def write_contest(folder: Path, number: int, participants: int = 300) -> None:
    (folder / str(number)).mkdir(parents=True)
    for name, content in contest(number, {"A": 500.0, "B": 1000.0}, participants).items():
        (folder / str(number) / name).write_text(json.dumps(content))


def test_a_rating_by_hand(tmp_path: Path) -> None:
    """A is solved at once, B by its checker in one of two answers: 1,500 or 1,450 points, as often as not.

    With 1,500 points nobody stands before us, with 1,450 the ten of 1,455 and more. The unrated guest does not count.
    """
    folder = tmp_path / "data" / "codeforces"
    a, b = codeforces(Sum(3), 1000, "A"), codeforces(Sum(4), 1000, "B")
    write(folder / "problems.jsonl", [a, b])
    write_contest(folder / "contests", 1000)
    odd = "```python\na, b = map(int, input().split())\nprint((" + Sum(4).formula + ") % 2)\n```"
    rows = [
        {"id": "1000/A", "sample": 0, "completion": Sum(3).right("python")},
        {"id": "1000/A", "sample": 1, "completion": Sum(3).right("python")},
        {"id": "1000/B", "sample": 0, "completion": odd},
        {"id": "1000/B", "sample": 1, "completion": "no program"},
    ]
    found = evaluate("codeforces", tmp_path / "data", write(tmp_path / "a.jsonl", rows), tmp_path / "out")
    others = [1000.0 + 5 * j for j in range(300)]
    wanted = (rating(1, others) + rating(11, others)) / 2
    assert found["codeforces"]["rating"] == {"value": pytest.approx(wanted), "low": None, "high": None, "n": 1}
    assert found["codeforces"]["avg@2"]["value"] == 0.75
    assert "offline estimate" in (tmp_path / "out" / "report.md").read_text()


def test_results_of_the_api_without_their_envelope(tmp_path: Path) -> None:
    folder = tmp_path / "data" / "codeforces"
    write(folder / "problems.jsonl", [codeforces(Sum(3), 1000, "A")])
    write_contest(folder / "contests", 1000)
    for file in (folder / "contests" / "1000").iterdir():
        file.write_text(json.dumps(json.loads(file.read_text())["result"]))
    answers = write(tmp_path / "a.jsonl", [{"id": "1000/A", "completion": "no program"}])
    found = evaluate("codeforces", tmp_path / "data", answers, tmp_path / "out")
    assert found["codeforces"]["rating"]["value"] == rating(301, [1000.0 + 5 * j for j in range(300)])


def test_codeforces_without_standings_contest_ids_or_contests_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "data" / "codeforces"
    write(folder / "problems.jsonl", [codeforces(Sum(3), 1000, "A")])
    answers = write(tmp_path / "a.jsonl", [{"id": "1000/A", "completion": Sum(3).right("python")}])
    evaluate("codeforces", tmp_path / "data", answers, tmp_path / "one", code=2)
    assert "standings.json is missing" in capsys.readouterr().err
    assert not (tmp_path / "one" / "samples.jsonl").exists()  # before anything is judged
    row = {name: value for name, value in codeforces(Sum(3), 1000, "A").items() if name != "contest_id"}
    write(tmp_path / "other" / "codeforces" / "problems.jsonl", [row])
    evaluate("codeforces", tmp_path / "other", answers, tmp_path / "three", code=2)
    assert "problem 1000/A: has no 'contest_id'" in capsys.readouterr().err
    write_contest(folder / "contests", 1000, participants=200)
    evaluate("codeforces", tmp_path / "data", answers, tmp_path / "two", code=2)
    assert "no contest in" in capsys.readouterr().err
