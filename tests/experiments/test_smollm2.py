"""Evaluations before and after: both judges, the part of a gain that is due to ending, the files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.smollm2.__main__ import main
from experiments.smollm2.answers import last_number, read, shares
from gspo_lightning.prompts import WordProblems

GOLDS = [str(record["answer"]) for record in WordProblems("held_out", 10).records()]


def write(folder: Path, answers: list[tuple[str, float, int, bool]]) -> Path:
    """An evaluation with these texts, values, tokens and truncations, its lines in another order."""
    folder.mkdir()
    lines = [
        json.dumps({"id": str(i), "completion": text, "value": value, "tokens": tokens, "truncated": cut})
        for i, (text, value, tokens, cut) in enumerate(answers, 1)
    ]
    (folder / "samples.jsonl").write_text("\n".join(reversed(lines)) + "\n")
    return folder


def test_judges_and_the_parts_of_a_gain(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    right = [(f"It is {gold}.", 1.0, 5, False) for gold in GOLDS]
    wrong = [("It is 999.", 0.0, 5, False)] * 10
    late = [(text, value, 60, False) for text, value, *_ in right]  # right, but only after the limit
    before = write(tmp_path / "before", late[:4] + wrong[4:9] + right[9:])
    after = write(tmp_path / "after", [*right[:6], ("Six or 7", 0.0, 192, True), *wrong[7:]])
    assert main(["--before", str(before), "--after", f"seed 1={after}", "--output", str(tmp_path)]) == 0
    results = json.loads((tmp_path / "results.json").read_text())
    run, gain = results["runs"]["seed 1"], results["runs"]["seed 1"]["gain"]
    assert [results["before"][k]["value"] for k in ("right", "lenient", "ended")] == [0.1, 0.5, 0.6]
    assert [run[k]["value"] for k in ("right", "lenient", "ended")] == [0.6, 0.6, 0.9]
    assert (gain["right"]["value"], gain["lenient"]["value"]) == (0.5, 0.1)
    assert (gain["due_to_ending"], gain["due_to_not_ending"]) == (0.4, 0.0)  # four late answers end now
    assert gain["among_ended_both_times"] == {"problems": 5, "gain": 0.2}  # two won, one lost, of five
    text = (tmp_path / "answers.md").read_text()
    assert text.count("* before, ") == text.count("* after, ") == 10
    assert text.count("* after, right: It is") == 6
    assert "right: 0.100 -> 0.600" in capsys.readouterr().out


def test_the_last_number_counts_for_the_lenient_judge(tmp_path: Path) -> None:
    assert last_number("1 + 2 = 3, not -1,004.") == "-1004"
    assert last_number("three") is None
    texts = [f"{gold}, or 999" for gold in GOLDS[:5]] + [f"999, or {gold}" for gold in GOLDS[5:]]
    folder = write(tmp_path / "judged", [(text, 0.0, 5, False) for text in texts])
    assert shares(read(folder))["lenient"]["value"] == 0.5
