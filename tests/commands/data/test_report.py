"""``gspo data report``: counts by hand, answers by the reward's own reader, lengths, languages, the picture."""

from __future__ import annotations

from pathlib import Path

import pytest

from gspo_lightning.sandbox import choose
from gspo_lightning.sandbox.cpp import missing
from tests import ROOT
from tests.commands.data.files import data, write

LONG = "A farmer has seventeen sheep, and all but nine of them run away. How many sheep does the farmer have left?"


def test_mathematics_is_read_by_the_verifier(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompts = [LONG, LONG, LONG.upper(), LONG.replace("nine", "five"), "What is 6*7?"]
    answers = ["9", r"\frac{1}{", "9", "5", "#### 42"]
    records = [{"prompt": p, "answer": a} for p, a in zip(prompts, answers, strict=True)]
    source = write(tmp_path / "a.jsonl", records)
    data("report", source)
    out = capsys.readouterr().out
    for row in ("prompts │ 5", "the same prompt as an earlier one │ 1", "case and white space │ 1", "earlier one │ 1"):
        assert "".join(row.split()) in "".join(out.split())
    assert f"length: 12 to {len(LONG)} characters, median {len(LONG)}" in out
    assert "answers: 5, all read by MathVerifier; 1 unreadable" in out
    assert "the first is a.jsonl:2" in out
    assert "a.jsonl:1: A farmer" in out
    assert (tmp_path / "a.jsonl.report.png").read_bytes().startswith(b"\x89PNG")


def test_tests_of_programs_are_counted_by_kind_and_language(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stdin = {"type": "stdin", "tests": [{"input": "1", "output": "1"}]}
    answers = [stdin, stdin, {**stdin, "language": "cpp"}, {"type": "sometimes", "tests": [1]}]
    source = write(tmp_path / "a.jsonl", [{"prompt": f"Task {i}", "answer": a} for i, a in enumerate(answers)])
    data("report", source, "--output", tmp_path / "x.png")
    out = capsys.readouterr().out
    compiler = not missing(choose())  # without one a C++ task cannot be judged
    assert f"answers: 4, all read by CodeExecutor; {1 if compiler else 2} unreadable" in out
    assert "tests: 2 stdin in python" + ", 1 stdin in cpp" * compiler in out
    assert (tmp_path / "x.png").exists()
    data("report", source, "--output", tmp_path / "no" / "x.png", code=2)


def test_a_config_gives_tokens_limits_columns_and_rewards(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write(tmp_path / "a.parquet", [{"q": "1+2:", "answer": "3"}, {"q": "1+2+3:", "answer": "6"}])
    config = ROOT / "configs" / "quickstart.yaml"
    words = ("--data.max_prompt_tokens=4", '--data.columns={"prompt": "q"}', "--data.reward_workers=1")
    data("report", source, f"--config={config}", *words)
    out = capsys.readouterr().out
    assert "length: 4 to 6 tokens" in out
    assert "".join(["longer", "than", "4", "tokens:", "never", "trained", "on", "│", "1"]) in "".join(out.split())
    assert "read by ExactMatch; 0 unreadable" in out
