"""What ``gspo evaluate`` says about the file that a model was trained on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gspo_lightning.commands.evaluate.command import leak_lines
from tests.commands.data.files import data, write


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Benchmarks, a training file, and a config in a run folder."""
    (tmp_path / "data").mkdir()
    write(tmp_path / "data" / "aime2024.jsonl", [{"id": 1, "problem": "What is 20+5?", "answer": "25"}])
    write(tmp_path / "data" / "aime2025.jsonl", [{"problem": "What is 30+5?", "answer": "35"}])
    source = write(tmp_path / "a.jsonl", [{"prompt": "Name a colour."}])
    data(
        "decontaminate", "--input", source, "--against", tmp_path / "data" / "aime2024.jsonl",
        "--against_column", "problem", "--output", tmp_path / "train.jsonl",
    )  # fmt: skip
    run = tmp_path / "run" / "version_0"
    (run / "checkpoints").mkdir(parents=True)
    (run / "config.yaml").write_text(json.dumps({"data": {"train": str(tmp_path / "train.jsonl")}}))
    return tmp_path


def test_the_decontamination_report_is_shown_and_what_it_does_not_name(folder: Path) -> None:
    checkpoint = str(folder / "run" / "version_0" / "checkpoints" / "last.ckpt")
    said = "trained on train.jsonl: decontaminated against aime2024.jsonl (1 prompts)"
    assert list(leak_lines([], checkpoint, ["aime2024"], folder / "data")) == [said]
    both = list(leak_lines([], checkpoint, ["aime2024", "aime2025"], folder / "data"))
    assert both == [said, "warning: aime2025 is not among them: gspo data decontaminate --against its file"]
    config = str(folder / "run" / "version_0" / "config.yaml")
    assert list(leak_lines([config], None, ["aime2024"], None)) == [said]


def test_a_file_that_was_changed_or_never_checked_is_said(folder: Path) -> None:
    config = str(folder / "run" / "version_0" / "config.yaml")
    with (folder / "train.jsonl").open("a") as file:
        file.write('{"prompt": "What is 20+5?"}\n')
    (said,) = leak_lines([config], None, ["aime2024"], folder / "data")
    assert said.startswith("warning: trained on train.jsonl is not the file that train.jsonl.decontaminated.json")
    (folder / "train.jsonl.decontaminated.json").unlink()
    (said,) = leak_lines([config], None, ["aime2024"], folder / "data")
    assert said == "trained on train.jsonl: not checked for leaks from these benchmarks"


def test_nothing_is_said_where_the_file_is_not_known(folder: Path) -> None:
    assert list(leak_lines([], None, ["aime2024"], folder / "data")) == []
    assert list(leak_lines([], str(folder / "model" / "x" / "last.ckpt"), ["aime2024"], None)) == []
