"""One clear line for bad input, exit code 2, and nothing lost or left behind; what a kill leaves is swept."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import ROOT
from tests.commands.data.files import data, read, write

GOOD = '{"id": 1, "prompt": "What is 1+1?", "pass_rate": 0.5}\n'
CONTENTS: dict[str, tuple[bytes, str]] = {
    "latin-1": (GOOD.encode() + '{"prompt": "\u00e9"}\n'.encode("latin-1"), "bad.jsonl:2: is not UTF-8"),
    "utf-16": (GOOD.encode("utf-16"), "bad.jsonl:1: is not UTF-8"),
    "no column": (GOOD.encode() * 2 + b'{"promt": "x"}\n', "bad.jsonl:3: has no column 'prompt' (did you mean promt?)"),
    "null": (GOOD.encode() + b'{"prompt": null}\n', "bad.jsonl:2: its 'prompt' is empty\n"),
    "a number": (b'{"prompt": 7}\n', "bad.jsonl:1: its 'prompt' is of type int"),
    "ten megabytes": (
        GOOD.encode() + b'{"prompt": "' + b"x" * 10_000_000 + b'"}\n',
        "bad.jsonl:2: its 'prompt' has 10,000,000 characters",
    ),
    "ten megabytes of no JSON": (GOOD.encode() + b"[" * 10_000_000 + b"\n", "bad.jsonl:2: is not JSON"),
    "NaN": (GOOD.encode() + b'{"prompt": "x", "weight": NaN}\n', "bad.jsonl:2: holds NaN, which is not JSON"),
    "infinity": (b'{"prompt": "x", "weight": -Infinity}\n', "bad.jsonl:1: holds -Infinity"),
    "empty": (b"", "bad.jsonl: holds no records"),
    "blank": (b"\n \n", "bad.jsonl: holds no records"),
    "cut": (GOOD.encode() + GOOD.encode()[:20], "bad.jsonl:2: is not JSON"),
    "an array": (b"[1]\n", "bad.jsonl:1: is a JSON list, not an object"),
}


@pytest.mark.parametrize("verb", ["dedup", "decontaminate --against bench.jsonl", "split"])
@pytest.mark.parametrize("name", CONTENTS)
def test_malformed_data_file_is_one_error_line_and_stays_unchanged(
    name: str, verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    content, said = CONTENTS[name]
    Path("bad.jsonl").write_bytes(content)
    Path("bench.jsonl").write_text(GOOD)
    data(*shlex.split(verb), "--input", "bad.jsonl", "--output", "out.jsonl", code=2)
    errors = capsys.readouterr().err
    assert f"error: {said}" in errors
    assert "Traceback" not in errors
    assert Path("bad.jsonl").read_bytes() == content
    assert {f.name for f in tmp_path.iterdir()} == {"bad.jsonl", "bench.jsonl"}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (
            b'\n{"prompt": "a"}\n\n{"prompt": 7}\n',
            "bad.jsonl:4: its 'prompt' is of type int, not a text or a list of chat",
        ),
        (b'{"prompt": [{"role": "user"}]}\n', "bad.jsonl:1: its 'prompt' is empty"),
        (b'\n{"prompt": "a"}\n{"prompt": ""}\n', "bad.jsonl:3: its 'prompt' is empty"),
        (b'\n{"prompt": "a"}\n{"promt": "b"}\n', "bad.jsonl:3: has no column 'prompt'"),
        (b'\n{"prompt": "a", "x": NaN}\n', "bad.jsonl:2: holds NaN"),
    ],
)
def test_convert_refuses_a_prompt_that_no_verb_takes_by_its_line(
    content: bytes, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.jsonl").write_bytes(content)
    data("convert", "--input", tmp_path / "bad.jsonl", "--output", tmp_path / "out.jsonl", code=2)
    assert f"error: {said}" in capsys.readouterr().err
    assert {f.name for f in tmp_path.iterdir()} == {"bad.jsonl"}


def test_half_a_surrogate_pair_stays_an_escape_in_what_is_written(tmp_path: Path) -> None:
    r"""JSON may hold ``\ud800`` alone, UTF-8 may not: outputs must be files that can be read again."""
    source = tmp_path / "a.jsonl"
    source.write_text('{"prompt": "\\ud800 one", "pass_rate": 0.5}\n{"prompt": "\u00e9 two"}\n', encoding="utf-8")
    wanted = ["\ud800 one", "\u00e9 two"]
    data("convert", "--input", source, "--output", tmp_path / "b.jsonl")
    assert [record["prompt"] for record in read(tmp_path / "b.jsonl")] == wanted
    rollout = {"prompt": "\u00e9 two", "reward": 1.0, "reward_parts": {"correct": 1.0}}
    write(tmp_path / "rollouts.jsonl", [rollout, rollout | {"prompt": "\ud800 one"}])
    out = tmp_path / "c.jsonl"
    data("difficulty", "--input", source, "--recorded", tmp_path / "rollouts.jsonl", "--output", out)
    assert [record["prompt"] for record in read(out)] == wanted


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--input none.jsonl --output out.jsonl", "--input: none.jsonl does not exist"),
        ("--input a.jsonl a.jsonl --output out.jsonl", "--input: a.jsonl is given twice"),
        ("--input a.jsonl ./link.jsonl --output out.jsonl", "--input: link.jsonl is given twice"),
        ("--input a.jsonl --output a.jsonl", "--output: a.jsonl is an input"),
        ("--input a.jsonl --output link.jsonl", "--output: link.jsonl is an input"),
        ("--input a.jsonl --output there.jsonl", "--output: there.jsonl exists"),
        ("--input a.jsonl --output taken.jsonl", "--output: taken.jsonl.dropped.jsonl exists"),
        ("--input a.jsonl --output no/out.jsonl", "--output: the folder no does not exist"),
        ("--input a.jsonl --output out.parquet", "--output: out.parquet is not .jsonl"),
        ("--input a.txt --output out.jsonl", "--input: a.txt is neither .jsonl nor .parquet"),
        ("--input a.jsonl p.parquet --output out.jsonl", "--input: names JSON lines and Parquet together"),
        ("--input p.parquet --output out.parquet", "p.parquet: is not a Parquet file, or is damaged"),
        ("--input a.jsonl b.jsonl --output out.jsonl", "b.jsonl:1: has the id '1', which a.jsonl:1 has, too"),
        ("--input a.jsonl --output out.jsonl --threshold 0.1", "--threshold: is 0.1"),
    ],
)
def test_bad_dedup_arguments_are_one_error_line_and_change_no_file(
    words: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.jsonl", "b.jsonl", "a.txt", "there.jsonl", "taken.jsonl.dropped.jsonl"):
        Path(name).write_text(GOOD)
    Path("link.jsonl").symlink_to("a.jsonl")
    Path("p.parquet").write_text(GOOD)
    before = {f.name: f.read_bytes() for f in tmp_path.iterdir()}
    data("dedup", *shlex.split(words), code=2)
    errors = capsys.readouterr().err
    assert f"error: {said}" in errors
    assert "Traceback" not in errors
    assert {f.name: f.read_bytes() for f in tmp_path.iterdir()} == before


@pytest.mark.parametrize("value", ['"0.5"', "1.5", "true", "-0.1"])
def test_a_pass_rate_that_is_none_is_named(value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.jsonl").write_text(GOOD + f'{{"prompt": "x", "pass_rate": {value}}}\n')
    words = ("--input", tmp_path / "a.jsonl", "--output", tmp_path / "b.jsonl", "--pass_rate", 0.1, 0.9)
    data("filter", *words, code=2)
    assert "error: a.jsonl:2: its 'pass_rate' is" in capsys.readouterr().err


def test_a_damaged_decontamination_report_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write(tmp_path / "a.jsonl", [{"prompt": "x"}])
    (tmp_path / "a.jsonl.decontaminated.json").write_text("{")
    data("dedup", "--input", source, "--output", tmp_path / "b.jsonl", code=2)
    assert "a.jsonl.decontaminated.json: is not a decontamination report" in capsys.readouterr().err


def test_a_kill_leaves_no_output_and_the_next_one_sweeps(tmp_path: Path) -> None:
    records = [{"prompt": f"{i} " + "word " * 30 + str(i * 7919)} for i in range(60_000)]
    source, target = write(tmp_path / "a.jsonl", records), tmp_path / "b.jsonl"
    words = [sys.executable, "-m", "gspo_lightning", "data", "dedup", "--input", str(source), "--output", str(target)]
    process = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not (left := [f for f in tmp_path.iterdir() if f.name.endswith(".unfinished")]):
        assert process.poll() is None
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert left
    assert not target.exists()
    assert len(read(source)) == 60_000
    write(tmp_path / "small.jsonl", records[:3])
    data("dedup", "--input", tmp_path / "small.jsonl", "--output", target)
    assert {f.name for f in tmp_path.iterdir()} == {"a.jsonl", "small.jsonl", "b.jsonl", "b.jsonl.dropped.jsonl"}
    assert json.loads(target.read_text().splitlines()[0]) == records[0]
