"""Files of records: cells as they stand there, malformed lines by number, and never a word of what a file holds."""

from __future__ import annotations

import gzip
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from gspo_lightning.cli import main
from gspo_lightning.core.errors import UserError
from gspo_lightning.data.prompts import PromptFile
from tests.runs import runs

SECRET = "Xylophone"


def written(folder: Path, name: str, content: bytes) -> str:
    file = folder / name
    file.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return str(file)


CSV: dict[str, tuple[str, bytes, list[dict[str, Any]]]] = {
    "cells are texts": ("a.csv", b"prompt,answer\n1+1:,042\n2:,1.50\n3:,true\n", [
        {"prompt": "1+1:", "answer": "042"}, {"prompt": "2:", "answer": "1.50"}, {"prompt": "3:", "answer": "true"}]),
    "nothing is a null": ("a.csv", b"prompt,answer\nx,NULL\ny,\nz,\"\"\nNaN,NA\n", [
        {"prompt": "x", "answer": "NULL"}, {"prompt": "y", "answer": ""}, {"prompt": "z", "answer": ""},
        {"prompt": "NaN", "answer": "NA"}]),
    "quotes, line breaks and separators": ("a.csv", b'prompt,answer\n"two\nlines, ""so""",1\nb,"2"\n', [
        {"prompt": 'two\nlines, "so"', "answer": "1"}, {"prompt": "b", "answer": "2"}]),
    "a quote inside": ("a.csv", b'prompt,answer\n5" nail,1\n', [{"prompt": '5" nail', "answer": "1"}]),
    "mark and empty lines": ("a.csv", b"\xef\xbb\xbfprompt,answer\r\n\r\na,1\r\n\r\nb,2", [
        {"prompt": "a", "answer": "1"}, {"prompt": "b", "answer": "2"}]),
    "white space stays": ("a.csv", b"prompt,answer\n a , 1\n", [{"prompt": " a ", "answer": " 1"}]),
    "tabs": ("a.tsv", b"prompt\tanswer\na,b\t007\n", [{"prompt": "a,b", "answer": "007"}]),
    "packed": ("a.csv.gz", b"prompt,answer\na,01\n", [{"prompt": "a", "answer": "01"}]),
    "packed lines": ("a.jsonl.gz", b'{"prompt": "a", "answer": 1}\n', [{"prompt": "a", "answer": 1}]),
    "an array": ("a.json", b'\xef\xbb\xbf[{"prompt": "a", "answer": "042"},\n {"prompt": "b", "level": 3}]', [
        {"prompt": "a", "answer": "042"}, {"prompt": "b", "level": 3}]),
    "other characters": ("a.csv", "prompt,answer\nGrüße 😀,é\n".encode(), [{"prompt": "Grüße 😀", "answer": "é"}]),
}  # fmt: skip


@pytest.mark.parametrize("case", CSV)
def test_records_are_what_stands_in_the_file(case: str, tmp_path: Path) -> None:
    name, content, expected = CSV[case]
    assert list(PromptFile(written(tmp_path, name, content)).records()) == expected


S = SECRET.encode()
MALFORMED: dict[str, tuple[str, bytes, str]] = {
    "a cell too few": ("a.csv", b"prompt,answer\n" + S + b",1\n" + S + b"\n", "a.csv:3: has 1 columns, the first"),
    "a cell too many": ("a.csv", b"prompt,answer\n\n" + S + b",1,2\n", "a.csv:3: has 3 columns"),
    "after a line break": ("a.csv", b'prompt,answer\n"' + S + b'\n\n",1\n' + S + b"\n", "a.csv:5: has 1 columns"),
    "an open quote": ("a.csv", b'prompt,answer\na,1\n"' + S + b",1\nb,2\n", "a.csv:3: has a quote that is not closed"),
    "another encoding": ("a.csv", b"prompt,answer\na,1\n" + S + b"\xe9,1\n", "a.csv:3: is not UTF-8"),
    "another encoding of names": ("a.csv", S + b"\xe9,answer\na,1\n", "a.csv:1: is not UTF-8"),
    "a name twice": ("a.csv", b"prompt," + S + b"," + S + b"\na,1,2\n", "a.csv:1: names 1 columns twice"),
    "names only": ("a.csv", b"prompt,answer\n", "holds no records"),
    "nothing": ("a.csv", b"\n\n", "holds no records"),
    "another separator": ("a.csv", b"prompt;answer\n" + S + b";1\n", "no column 'prompt'; it has prompt;answer"),
    "no names": ("a.csv", (S * 9) + b",1\n" + S + b",2\n", "2 columns whose names do not look like names"),
    "lines": ("a.jsonl", b'{"prompt": "a"}\n{"prompt": "' + S + b'}\n', "a.jsonl:2: is not JSON"),
    "an array of texts": ("a.json", b'[{"prompt": "a"}, "' + S + b'"]', "a.json, record 2: is a JSON str"),
    "no array": ("a.json", b'{"data": "' + S + b'"}', "a.json: is a JSON dict, not an array"),
    "a broken array": ("a.json", b'[{"prompt": "a"},\n{"prompt": "' + S + b'",}]', "a.json:2: is not JSON"),
    "lines in an array's file": ("a.json", b'{"a": 1}\n{"prompt": "' + S + b'"}', "a.json:2: is not JSON"),
    "too deep": ("a.json", b"[" * 100_000, "is not JSON"),
    "an encoding of an array": ("a.json", b'[\n{"prompt": "' + S + b'\xe9"}]', "a.json:2: is not UTF-8"),
    "no table": ("a.parquet", S * 50, "a.parquet: is not a Parquet file"),
    "an empty prompt": ("a.csv", b'prompt,answer\n,' + S + b"\n", "a.csv, record 1: 'prompt' must be a non-empty text"),
}  # fmt: skip


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_record_is_named_by_file_and_line_and_not_shown(case: str, tmp_path: Path) -> None:
    name, content, expected = MALFORMED[case]
    with pytest.raises(UserError) as caught:
        PromptFile(written(tmp_path, name, content)).records()
    assert expected in str(caught.value)
    assert SECRET not in str(caught.value)
    assert str(tmp_path) not in str(caught.value)
    assert caught.value.__cause__ is None or SECRET not in str(caught.value.__cause__)


def test_a_file_that_is_no_whole_gzip_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"prompt,answer\n" + b"a,1\n" * 999)[:-9])
    (tmp_path / "b.csv.gz").write_bytes(b"prompt,answer\na,1\n")
    for name in ("a.csv.gz", "b.csv.gz"):
        with pytest.raises(UserError, match="is not a whole gzip file"):
            PromptFile(str(tmp_path / name)).records()


FILES = {
    "a table": ("records.csv", f"prompt,answer\n{SECRET} 1+1,2\n" + "".join(f"{SECRET} {i},{i}\n" for i in range(99))),
    "a short table": ("records.csv", f"prompt,answer\n{SECRET},2\n"),
    "an array": ("records.json", json.dumps([{"prompt": SECRET, "answer": "1"}] * 20)),
    "lines": ("records.jsonl", json.dumps({"prompt": SECRET, "answer": "1"}) + "\n"),
    "a text": ("records.txt", f"{SECRET} and more\n"),
    "a broken table": ("records.csv", f"prompt,answer\n{SECRET},{SECRET},2\n"),
    "names that are records": ("records.csv", f"{SECRET * 8},2\n{SECRET},3\n"),
}


@pytest.mark.thorough("a table-val")
@pytest.mark.parametrize(("case", "field"), [*((case, "train") for case in FILES), ("a table", "val")])
def test_no_file_of_records_is_printed(
    case: str, field: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    name, content = FILES[case]
    (tmp_path / name).write_text(content)
    caplog.set_level(logging.DEBUG)
    options = ["--model.cold_start=null", f"--trainer.default_root_dir={tmp_path / 'root'}", "--data.reward_workers=1"]
    config = tmp_path / "more.yaml"
    config.write_text(f"data:\n  {field}: {tmp_path / name}\n")
    given = f"--config={config}" if case == "a table" else f"--data.{field}={tmp_path / name}"
    assert main(["fit", f"--config={runs.QUICKSTART}", *options, given]) == 2
    shown = capfd.readouterr()
    assert SECRET not in shown.err + shown.out + caplog.text
    assert "Traceback" not in shown.err
    assert len(shown.err.splitlines()) <= 3


def test_a_table_trains(tmp_path: Path) -> None:
    rows = "".join(f'"{i}+{j}:",0{i + j}\n' for i in range(4) for j in range(4))
    (tmp_path / "records.csv").write_text("question,gold\n" + rows)
    options = [f"--data.train={tmp_path / 'records.csv'}", "--data.val=null", "--trainer.max_epochs=1"]
    columns = '--data.columns={"prompt": "question", "answer": "gold"}'
    run = runs.fit(tmp_path / "root", "--model.cold_start=null", *options, columns, "--trainer.num_sanity_val_steps=0")
    assert runs.summary(run)["updates"] == 2
