"""``gspo evaluate --completions``: recorded answers, from the command line to the files."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gspo_lightning import __version__
from gspo_lightning.cli import main
from gspo_lightning.commands.evaluate.run import Plan, Task
from gspo_lightning.commands.evaluate.run import evaluate as run_evaluation
from gspo_lightning.report.statistics.intervals import of_new_problems, of_these_problems
from gspo_lightning.resume.writer import sole_writer
from gspo_lightning.rewards import CodeExecutor
from gspo_lightning.rewards.workers import runner
from gspo_lightning.rewards.workers.dispatcher import Dispatcher
from gspo_lightning.training.suites.metrics import write_results
from gspo_lightning.training.suites.suite import load_suite
from tests import ROOT

Lines = list[dict[str, Any]]


def write(path: Path, lines: Lines) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def aime(tmp_path: Path) -> Path:
    """Three problems in the set's layout."""
    answers = ("025", "113", "7")
    rows = [
        {"id": 60 + i, "problem": f"What is {int(a)}?", "solution": "", "answer": a, "url": "", "year": "2024"}
        for i, a in enumerate(answers)
    ]
    write(tmp_path / "data" / "aime2024.jsonl", rows)
    return tmp_path / "data"


@pytest.fixture
def sums(aime: Path) -> Path:
    """The same problems as a suite of one's own, whose reward loads no algebra: it takes a worker a second."""
    path = aime / "sums.yaml"
    path.write_text(
        f"about: sums\ndata: {aime / 'aime2024.jsonl'}\ncolumns: {{id: id, prompt: problem, answer: answer}}\n"
        "prompt: '{{ prompt }}'\nreward: {class_path: ExactMatch}\nmetrics: [avg, pass]\n"
    )
    return path


def box(value: object) -> str:
    return f"<think>let me see</think> The answer is \\boxed{{{value}}}."


def evaluate(output: Path, *arguments: object, code: int = 0) -> dict[str, Any]:
    assert main(["evaluate", f"--output={output}", "--workers=1", *map(str, arguments)]) == code
    return json.loads((output / "results.json").read_text()) if code == 0 else {}


@pytest.mark.thorough
def test_golds_that_cannot_be_read_are_said_before_any_answer_is_asked_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    golds = ("25", r"C \subset D", r"x \equiv 3 \pmod 7", r"A \subset B")
    rows = [{"id": f"q{i}", "problem": "?", "answer": gold} for i, gold in enumerate(golds)]
    write(tmp_path / "data" / "aime2024.jsonl", rows)
    plan = Plan(("aime2024",), tmp_path / "asked", data=tmp_path / "data", workers=1)
    said: list[str] = []

    def source(_: object) -> Any:
        said.extend(record.getMessage() for record in caplog.records)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_evaluation(plan, source)
    (line,) = said
    assert line.startswith("aime2024: 2 of 4 records looked at will have no reward")
    assert "the first is q1: the record's answer cannot be read" in line
    assert line.endswith("; then q3")
    answers = [{"id": f"q{i}", "sample": 0, "completion": box(gold)} for i, gold in enumerate(golds)]
    completions = write(tmp_path / "a.jsonl", answers)
    started: list[int] = []

    class Counted(Dispatcher):
        def __init__(self, *settings: Any) -> None:
            started.append(1)
            super().__init__(*settings)

    monkeypatch.setattr(runner, "Dispatcher", Counted)
    found = evaluate(tmp_path / "out", "--suite=aime2024", "--data", tmp_path / "data", "--completions", completions)
    assert started == [1]  # the workers that read the golds grade the answers
    assert found["aime2024"]["avg@1"]["value"] == 1.0
    assert found["run"]["notes"]["aime2024"] == [line.removeprefix("aime2024: ")]


@pytest.mark.thorough
def test_a_checkout_without_metadata_evaluates(aime: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on PYTHONPATH, where nobody has installed the package."""

    known = importlib.metadata.version

    def of_others(name: str) -> str:
        if name == "gspo_lightning":
            raise importlib.metadata.PackageNotFoundError(name)
        return known(name)

    monkeypatch.setattr(importlib.metadata, "version", of_others)
    answers = write(tmp_path / "a.jsonl", [{"id": "60", "completion": box(25)}])
    found = evaluate(tmp_path / "out", "--suite=aime2024", "--data", aime, "--completions", answers)
    assert found["run"]["versions"]["gspo_lightning"] == __version__
    assert found["run"]["versions"]["math-verify"] == known("math-verify")


@pytest.mark.thorough
def test_numbers_by_hand(aime: Path, tmp_path: Path) -> None:
    """3 problems, 4 answers each: 4, 2 and 0 right. Votes: right; 2 right to 1 and 1; all wrong."""
    said = {60: [25, "025", "25.0", r"\text{25}"], 61: ["113.0", 113, 112, 100], 62: [8, 8, "", 9]}
    rows = [
        {"id": str(i), "sample": k, "completion": box(value) if value != "" else "I give up"}
        for i, values in said.items()
        for k, value in enumerate(values)
    ]
    found = evaluate(
        tmp_path / "out", "--suite=aime2024", "--data", aime, "--completions", write(tmp_path / "a.jsonl", rows)
    )
    numbers = found["aime2024"]
    assert numbers["avg@4"]["value"] == pytest.approx((1 + 0.5 + 0) / 3)
    assert numbers["pass@4"]["value"] == pytest.approx(2 / 3)
    assert numbers["maj@4"]["value"] == pytest.approx(2 / 3)
    shares = [numbers[f"g-pass@4_{share}"]["value"] for share in (0.5, 0.75, 1.0)]
    assert shares == pytest.approx([2 / 3, 1 / 3, 1 / 3])
    assert numbers["mg-pass@4"]["value"] == pytest.approx(1 / 3)
    assert numbers["mg-pass@4"]["high"] <= 1.0
    assert numbers["no_answer"]["value"] == pytest.approx(1 / 12)
    assert numbers["truncated"]["value"] == 0.0
    new = of_new_problems([1.0, 0.5, 0.0])
    assert (numbers["avg@4"]["low"], numbers["avg@4"]["high"], numbers["avg@4"]["n"]) == (new.low, new.high, 3)
    these = of_these_problems([[1.0] * 4, [1.0, 1.0, 0.0, 0.0], [0.0] * 4])
    assert numbers["avg@4"]["these_problems"] == {"low": these.low, "high": these.high}
    assert {p.name for p in (tmp_path / "out").iterdir() if p.name != ".lock"} == {
        "results.json", "report.md", "report.png", "samples.jsonl",
    }  # fmt: skip
    run = found["run"]
    assert {"sampling", "revision", "versions", "hashes"} <= run.keys()
    assert run["sampling"] == {"aime2024": None}  # nobody knows how recorded answers were sampled
    assert len(run["hashes"]["aime2024"]) == len(run["answers"]["sha256"]) == 64
    page = (tmp_path / "out" / "report.md").read_text()
    assert "| avg@4 | 50.0 % |" in page
    assert (tmp_path / "out" / "samples.jsonl").stat().st_mode & 0o077 == 0  # prompts and answers may be private


@pytest.mark.thorough
def test_wrong_votes_merge_by_the_comparison_that_grades(aime: Path, tmp_path: Path) -> None:
    """25 right twice, and one wrong value written in four ways; 113 right twice, and four values once each.

    The third problem has one wrong value and one right answer, each twice. The same after an interruption.
    """
    said = {
        60: [25, 25, "30", "x = 30", r"\frac{60}{2}", r"30\text{ cm}"],
        61: [113, 113, r"\frac{1}{2}", r"\frac{1}{3}", r"\sqrt{2}", "y"],
        62: [7, 7, r"\frac{\sqrt{8}}{2}", r"\sqrt{2}", "1", "2"],
    }
    rows = [
        {"id": str(i), "sample": k, "completion": box(v)} for i, values in said.items() for k, v in enumerate(values)
    ]
    arguments = ("--suite=aime2024", "--data", aime, "--completions", write(tmp_path / "a.jsonl", rows))
    whole = evaluate(tmp_path / "out", *arguments)["aime2024"]
    assert whole["maj@6"]["value"] == pytest.approx((0 + 1 + 1 / 2) / 3)
    file = tmp_path / "out" / "samples.jsonl"
    votes = {(v["id"], v["sample"]): v["vote"] for v in map(json.loads, file.read_text().splitlines())}
    assert [votes["60", k] for k in range(6)] == ["=", "=", "30", "30", "30", "30"]
    assert len({votes["61", k] for k in range(6)}) == 5
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:4]))
    assert evaluate(tmp_path / "out", *arguments)["aime2024"] == whole


@pytest.mark.thorough
def test_unequal_numbers_of_answers_are_said(aime: Path, tmp_path: Path) -> None:
    rows = [{"id": "60", "completion": box(25)}] * 3 + [{"id": "61", "completion": box(1)}] * 2
    found = evaluate(
        tmp_path / "out", "--suite=aime2024", "--data", aime, "--completions", write(tmp_path / "a.jsonl", rows)
    )
    assert {"avg@3", "pass@2", "g-pass@2_1.0", "maj@2"} <= found["aime2024"].keys()
    notes = found["run"]["notes"]["aime2024"]
    assert any("1 of 3 problems have no verdict" in note for note in notes)
    assert any("2 to 3 answers" in note for note in notes)


@pytest.mark.thorough
def test_an_interrupted_evaluation_goes_on(sums: Path, tmp_path: Path) -> None:
    rows = [{"id": str(i), "sample": k, "completion": "#025"} for i in (60, 61, 62) for k in range(3)]
    arguments = (f"--suite={sums}", "--completions", write(tmp_path / "a.jsonl", rows))
    whole = evaluate(tmp_path / "whole", *arguments)
    assert whole["sums"]["avg@3"]["value"] == pytest.approx(1 / 3)
    evaluate(tmp_path / "cut", *arguments)
    file = tmp_path / "cut" / "samples.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:4]) + lines[4][:30])  # killed in the middle of a line
    assert evaluate(tmp_path / "cut", *arguments)["sums"] == whole["sums"]
    assert sorted(file.read_text().splitlines()) == sorted(
        (tmp_path / "whole" / "samples.jsonl").read_text().splitlines()
    )


@pytest.mark.parametrize("left", [b"", b"\0" * 512, b'{"run": {"answers": {"comple'])
def test_results_that_a_power_failure_cut_off_stop_no_continuation(left: bytes, sums: Path, tmp_path: Path) -> None:
    rows = [{"id": str(i), "sample": k, "completion": "#025"} for i in (60, 61, 62) for k in range(3)]
    arguments = (f"--suite={sums}", "--completions", write(tmp_path / "a.jsonl", rows))
    whole = evaluate(tmp_path / "out", *arguments)
    lines = (tmp_path / "out" / "samples.jsonl").read_bytes()
    for _ in range(2):  # and again: what is not known stays said
        (tmp_path / "out" / "results.json").write_bytes(left)
        again = evaluate(tmp_path / "out", *arguments)
        assert again["sums"] == whole["sums"]
        assert evaluate(tmp_path / "out", *arguments)["run"] == again["run"]
        assert (tmp_path / "out" / "samples.jsonl").read_bytes() == lines
        (note,) = again["run"]["notes"]["sums"]
        assert "results.json was empty or cut off. 9 verdicts are on these problems and were kept" in note
        assert note in (tmp_path / "out" / "report.md").read_text()


def test_cut_off_results_of_other_problems_stop_one(
    aime: Path, sums: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = (f"--suite={sums}", "--completions", write(tmp_path / "a.jsonl", [{"id": "60", "completion": "#1"}]))
    for changed in (("What is", "How much is"), ('"answer": "025"', '"answer": "026"')):
        output, data = tmp_path / changed[0].strip('"'), aime / "aime2024.jsonl"
        evaluate(output, *arguments)
        (output / "results.json").write_bytes(b"")
        data.write_text(data.read_text().replace(*changed))
        evaluate(output, *arguments, code=2)
        assert "contains a different evaluation: its problems or rewards differ" in capsys.readouterr().err
        assert (output / "results.json").read_bytes() == b""


def test_results_are_on_the_disk_before_they_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    sync, replace = os.fsync, os.replace

    def seen(name: str, real: Callable[..., None]) -> Callable[..., None]:
        def call(*arguments: Any) -> None:
            done.append(name)
            real(*arguments)

        return call

    monkeypatch.setattr(os, "fsync", seen("fsync", sync))
    monkeypatch.setattr(os, "replace", seen("replace", replace))
    write_results(tmp_path, {"run": {}})
    assert done == ["fsync", "replace", "fsync"]  # the file, its name, the folder
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_results(tmp_path, {"run": {"answers": 1}})
    assert [p.name for p in tmp_path.iterdir()] == ["results.json"]
    assert json.loads((tmp_path / "results.json").read_text()) == {"run": {}}


def full(_: int) -> None:
    raise OSError(28, "No space left on device")


def test_another_evaluation_does_not_go_on_there(
    aime: Path, sums: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows: Lines = [{"id": "60", "completion": "#025"}]
    arguments = (f"--suite={sums}", "--completions", write(tmp_path / "a.jsonl", rows))
    evaluate(tmp_path / "out", *arguments)
    (aime / "aime2024.jsonl").write_text((aime / "aime2024.jsonl").read_text().replace("What is", "How much is"))
    evaluate(tmp_path / "out", *arguments, code=2)
    assert "contains a different evaluation: its problems or rewards differ" in capsys.readouterr().err


def test_another_file_of_answers_under_the_same_name_does_not_go_on(
    sums: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = write(tmp_path / "a.jsonl", [{"id": "60", "completion": "#025"}])
    evaluate(tmp_path / "out", f"--suite={sums}", "--completions", answers)
    moved = tmp_path / "moved.jsonl"
    moved.write_text(answers.read_text())
    evaluate(tmp_path / "out", f"--suite={sums}", "--completions", moved)
    write(answers, [{"id": "60", "completion": "#026"}])
    evaluate(tmp_path / "out", f"--suite={sums}", "--completions", answers, code=2)
    assert "contains a different evaluation: its answers differ" in capsys.readouterr().err


def test_a_second_evaluation_into_the_same_folder_is_refused(
    sums: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = write(tmp_path / "a.jsonl", [{"id": "60", "completion": "#025"}])
    words = (f"--suite={sums}", "--completions", answers)
    with sole_writer(tmp_path / "out", "--output"):
        evaluate(tmp_path / "out", *words, code=2)
    assert f"is being written by process {os.getpid()} on" in capsys.readouterr().err
    evaluate(tmp_path / "out", *words)
    assert not (tmp_path / "out" / ".lock.json").exists()


@pytest.mark.long
def test_a_killed_evaluation_leaves_no_lock(aime: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first one waits for its answers: they come through a pipe."""
    answers = write(tmp_path / "a.jsonl", [{"id": "60", "completion": box(25)}])
    words = ("--suite=aime2024", "--data", aime, "--workers=1")
    pipe, output = tmp_path / "pipe", tmp_path / "out"
    os.mkfifo(pipe)
    argv = ["-m", "gspo_lightning", "evaluate", f"--output={output}", *map(str, words), "--completions", str(pipe)]
    first = subprocess.Popen([sys.executable, *argv], cwd=ROOT)
    try:
        until = time.monotonic() + 240
        while not (output / ".lock.json").exists():
            assert first.poll() is None
            assert time.monotonic() < until
            time.sleep(0.05)
        evaluate(output, *words, "--completions", answers, code=2)
        assert f"is being written by process {first.pid} on" in capsys.readouterr().err
    finally:
        first.kill()
        first.wait()
    evaluate(output, *words, "--completions", answers)  # a killed process holds nothing


@pytest.mark.usefixtures("numpy_for_programs")
def test_a_fingerprint_is_not_of_the_machine() -> None:
    suite = load_suite("livecodebench")
    assert isinstance(suite.reward, CodeExecutor)
    before = Task(suite, "", []).fingerprint()
    elsewhere = replace(suite.reward.chosen.python, executable="/elsewhere/python", prefix="/elsewhere")
    suite.reward.chosen = replace(suite.reward.chosen, python=elsewhere)
    assert Task(suite, "", []).fingerprint() == before
    suite.reward.timeout_s = 7.0
    assert Task(suite, "", []).fingerprint() != before


def no_json(line: str) -> str:
    return line[:-3]


def unknown(line: str) -> str:
    return line.replace('"61"', '"16"')


def misspelt(line: str) -> str:
    return line.replace('"61"', '"611"')


def twice(line: str) -> str:
    return line.replace('"61"', '"60"')


def no_text(line: str) -> str:
    return line.replace('"completion"', '"answer"')


def of_lm_eval(line: str) -> str:
    """As a line of its ``--log_samples``."""
    return json.dumps({"doc_id": 61, "resps": [["#025"]], "filtered_resps": ["25"]})


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (of_lm_eval, 'a.jsonl:2: has no \'id\' of a problem\n  fix: write {"id": ..., "sample": 0, "completion"'),
        (no_json, "a.jsonl:2: is not JSON"),
        (unknown, "a.jsonl:2: its id '16' is not a problem of sums\n"),
        (misspelt, "a.jsonl:2: its id '611' is not a problem of sums (did you mean 61?)"),
        (twice, "a.jsonl:2: answers '60' as sample 0 a second time"),
        (no_text, "a.jsonl:2: has no 'completion' that is a text"),
    ],
)
def test_a_bad_line_is_named(
    damage: Callable[[str], str], said: str, sums: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows: Lines = [{"id": i, "sample": 0, "completion": "#025"} for i in ("60", "61")]
    file = write(tmp_path / "a.jsonl", rows)
    first, second = file.read_text().splitlines()
    file.write_text(f"{first}\n{damage(second)}\n")
    evaluate(tmp_path / "out", f"--suite={sums}", "--completions", file, code=2)
    assert said in capsys.readouterr().err


@pytest.mark.thorough("arguments6-absent.jsonl cannot be read")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "--suite: is missing"),
        (["--suite=aime2042", "--completions=x"], "did you mean"),
        (["--suite=aime2024"], "--model, --config, --ckpt_path, --server, --completions"),
        (["--suite=aime2024:2024-10..", "--completions=x"], "has no dates"),
        (["--suite=math500", "--completions=x"], "holds no file of the suite 'math500'"),
        (["--suite=aime2024", "--suite=aime2024", "--completions=x"], "is given twice"),
        (["--suite=aime2024", "--completions=absent.jsonl"], "absent.jsonl cannot be read"),
    ],
)
def test_evaluate_names_a_bad_suite_or_completions_argument(
    arguments: list[str], said: str, aime: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluate(tmp_path / "out", "--data", aime, *arguments, code=2)
    assert said in capsys.readouterr().err


def test_zebra_counts_every_cell_and_sizes(tmp_path: Path) -> None:
    """2 x 2: a whole grid, and half of one; 4 x 4: no JSON. Cells: (4 + 2 + 0) of 24; puzzles: 1 of 3."""
    small = {"header": ["House", "Name", "Pet"], "rows": [["1", "Eric", "cat"], ["2", "Bob", "dog"]]}
    names = [["1", *"abcd"], ["2", *"bcda"], ["3", *"cdab"], ["4", *"dabc"]]
    large = {"header": ["House", "Name", "Pet", "Car", "Tea"], "rows": names}
    rows = [
        {"id": f"p{i}", "size": size, "puzzle": "?", "solution": grid, "created_at": ""}
        for i, (size, grid) in enumerate([("2*2", small), ("2*2", small), ("4*4", large)])
    ]
    write(tmp_path / "data" / "zebralogic.jsonl", rows)
    right = {"House 1": {"Name": "Eric", "Pet": "Cat "}, "House 2": {"Name": "bob", "Pet": "dog"}}
    half = {"House 1": {"Name": "Eric", "Pet": "dog"}, "House 2": {"Name": "Bob", "Pet": "cat"}}
    texts = [json.dumps({"reasoning": "", "solution": right}), json.dumps({"solution": half}), "House 1 is Eric's."]
    answers = write(tmp_path / "z.jsonl", [{"id": f"p{i}", "completion": text} for i, text in enumerate(texts)])
    found = evaluate(tmp_path / "out", "--suite=zebralogic", "--data", tmp_path / "data", "--completions", answers)
    numbers = {name: one["value"] for name, one in found["zebralogic"].items()}
    assert numbers["puzzle_accuracy"] == pytest.approx(1 / 3)
    assert numbers["cell_accuracy"] == pytest.approx(6 / 24)
    assert numbers["no_answer"] == pytest.approx(1 / 3)
    assert numbers["puzzle_accuracy/small"] == 0.5
    assert numbers["puzzle_accuracy/medium"] == 0.0


@pytest.mark.thorough
def test_two_evaluations_are_compared_problem_by_problem(
    aime: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in (("before", 1), ("after", 25)):
        rows: Lines = [{"id": i, "completion": box(value)} for i in ("60", "61")]
        answers = write(tmp_path / f"{name}.jsonl", rows)
        evaluate(tmp_path / name, "--suite=aime2024", "--data", aime, "--completions", answers)
    capsys.readouterr()
    assert main(["evaluate", "--compare", str(tmp_path / "before"), str(tmp_path / "after")]) == 0
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("| aime2024"))
    assert "| 0.0 % | 50.0 % | +50.0" in row
    assert "| 1 | 1 / 0 / 2 | 0 | not enough problems to tell |" in row


SUM = "about: sums\ncolumns: {id: name, prompt: question, answer: gold}\nprompt: 'Add {{ prompt }}.'\nmetrics: [avg]\n"


def graded(folder: Path, reward: str, golds: list[str], *more: object) -> Path:
    """The same ten answers, judged by these golds and this reward; the output."""
    folder.mkdir()
    (folder / "sums.yaml").write_text(f"{SUM}data: {folder / 'sums.jsonl'}\nreward: {reward}\n")
    write(folder / "sums.jsonl", [{"name": f"n{i}", "question": f"{i}+1", "gold": g} for i, g in enumerate(golds)])
    answers = write(folder / "a.jsonl", [{"id": f"n{i}", "completion": box(f"{i + 1}.004")} for i in range(10)])
    evaluate(folder / "out", f"--suite={folder / 'sums.yaml'}", "--completions", answers, *more)
    return folder / "out"


PLAIN, ROUNDED = "{class_path: MathVerifier}", "{class_path: MathVerifier, init_args: {decimals: 2}}"
GOLDS = [f"{i + 1}.004" for i in range(10)]


def comparison(a: Path, b: Path, capsys: pytest.CaptureFixture[str], code: int = 0) -> str:
    capsys.readouterr()
    assert main(["evaluate", "--compare", str(a), str(b)]) == code
    said = capsys.readouterr()
    return said.err if code else said.out


@pytest.mark.thorough
def test_verdicts_by_other_answers_or_rewards_are_not_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ten answers that are the same: 'worse, p = .002' would be about the judges."""
    a = graded(tmp_path / "a", PLAIN, GOLDS)
    golds = graded(tmp_path / "golds", PLAIN, [*GOLDS[:1], *(f"{i}.5" for i in range(9))])
    said = comparison(a, golds, capsys, 2)
    assert "the records of 9 problems (answers, or other columns) differ" in said
    assert f"gspo evaluate --completions {a / 'samples.jsonl'}" in said
    options = graded(tmp_path / "options", ROUNDED, GOLDS)
    said = comparison(a, options, capsys, 2)
    assert "the options decimals of the reward MathVerifier differ" in said
    assert "records" not in said
    other = graded(tmp_path / "other", "{class_path: ExactMatch}", GOLDS)
    assert "the rewards (MathVerifier and ExactMatch) differ" in comparison(a, other, capsys, 2)


@pytest.mark.thorough
def test_the_fix_for_other_golds_is_to_judge_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = graded(tmp_path / "a", PLAIN, ["1"] * 10), graded(tmp_path / "b", PLAIN, GOLDS)
    again = tmp_path / "again"
    evaluate(again, f"--suite={tmp_path / 'b' / 'sums.yaml'}", "--completions", a / "samples.jsonl")
    assert "| 100.0 % | 100.0 % |" in comparison(again, b, capsys)


@pytest.mark.thorough
def test_fewer_problems_of_the_same_suite_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = graded(tmp_path / "a", PLAIN, GOLDS)
    rows = [{"id": f"n{i}", "completion": box(f"{i + 1}.004")} for i in range(4)]
    few, suite = write(tmp_path / "few.jsonl", rows), tmp_path / "a" / "sums.yaml"
    evaluate(tmp_path / "few", f"--suite={suite}", "--limit=4", "--completions", few)
    said = comparison(a, tmp_path / "few", capsys)
    assert "| 0 / 0 / 4 | 6 | no difference seen |" in said
    assert "note" not in said


def old(now: Path, **more: Any) -> Path:
    """A copy of an output as older versions wrote it."""
    output = now.with_name(f"old{len(list(now.parent.iterdir()))}")
    shutil.copytree(now, output)
    file, results = output / "samples.jsonl", json.loads((output / "results.json").read_text())
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    write(file, [{key: value for key, value in line.items() if key != "record_sha256"} for line in lines])
    del results["run"]["rewards"], results["run"]["recovered"]
    results["run"] |= more
    (output / "results.json").write_text(json.dumps(results))
    return output


@pytest.mark.thorough
def test_comparison_tells_which_hashes_older_results_lack(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new, rounded = graded(tmp_path / "new", PLAIN, GOLDS), graded(tmp_path / "rounded", ROUNDED, GOLDS)
    a, other = old(new), old(rounded)
    assert "note" not in comparison(a, new, capsys)  # one hash of all of it was there, and is the same
    assert "problems or rewards (by the hash of both) differ" in comparison(a, other, capsys, 2)
    assert "problems or rewards (by the hash of both) differ" in comparison(new, other, capsys, 2)
    older = old(rounded, hashes={})
    unknown = "note: sums: whether records and reward options are the same cannot be checked: an older version wrote"
    assert unknown in comparison(new, older, capsys)
    older = old(new, versions={"gspo_lightning": "0.0.1"})
    assert "note: sums: judged by other versions: gspo_lightning 0.0.1" in comparison(older, a, capsys)


def test_a_suite_of_the_users_own(tmp_path: Path) -> None:
    (tmp_path / "sums.yaml").write_text(
        f"about: sums\ndata: {tmp_path / 'sums.jsonl'}\n"
        "columns: {id: name, prompt: question, answer: gold}\n"
        "prompt: 'Compute {{ prompt }} {exactly}.'\nreward: {class_path: ExactMatch}\nmetrics: [avg]\nby: level\n"
    )
    rows = [{"name": f"n{i}", "question": f"{i}+1", "gold": str(i + 1), "level": i % 2} for i in range(4)]
    write(tmp_path / "sums.jsonl", rows)
    answers = write(tmp_path / "a.jsonl", [{"id": f"n{i}", "completion": "#1"} for i in range(4)])
    found = evaluate(tmp_path / "out", f"--suite={tmp_path / 'sums.yaml'}", "--completions", answers)
    numbers = {name: one["value"] for name, one in found["sums"].items()}
    assert (numbers["avg@1"], numbers["avg@1/0"], numbers["avg@1/1"]) == (0.25, 0.5, 0.0)
