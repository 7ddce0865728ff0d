"""Evaluations before and after: both judges, the part of a gain that is due to ending, the files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.smollm2 import ratios
from experiments.smollm2.__main__ import main
from experiments.smollm2.answers import last_number, read, shares
from experiments.smollm2.ratios import main as main_of_ratios
from gspo_lightning.data.prompts import WordProblems
from tests.runs import runs

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


def test_other_ways_of_training_join_the_runs(tmp_path: Path) -> None:
    right = [(f"It is {gold}.", 1.0, 5, False) for gold in GOLDS]
    wrong = [("It is 999.", 0.0, 5, False)] * 10
    before, after = write(tmp_path / "before", wrong), write(tmp_path / "after", right[:6] + wrong[6:])
    other = write(tmp_path / "other", right[:3] + wrong[3:])
    home = ["--output", str(tmp_path), "--picture", str(tmp_path / "picture.png")]
    assert main(["--before", str(before), "--after", f"seed 1={after}", *home]) == 0
    answers = (tmp_path / "answers.md").read_text()
    assert main(["--before", str(before), "--others", f"rejection={other}", *home]) == 0
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["runs"]["seed 1"]["right"]["value"] == 0.6
    assert results["others"]["rejection"]["right"]["value"] == 0.3
    assert results["others"]["rejection"]["gain"]["right"]["value"] == 0.3
    assert (tmp_path / "answers.md").read_text() == answers
    assert not (tmp_path / "picture.png").exists()  # no curves of the runs are known


def test_the_last_number_counts_for_the_lenient_judge(tmp_path: Path) -> None:
    assert last_number("1 + 2 = 3, not -1,004.") == "-1004"
    assert last_number("three") is None
    texts = [f"{gold}, or 999" for gold in GOLDS[:5]] + [f"999, or {gold}" for gold in GOLDS[5:]]
    folder = write(tmp_path / "judged", [(text, 0.0, 5, False) for text in texts])
    assert shares(read(folder))["lenient"]["value"] == 0.5


def test_clipping_by_length_is_that_of_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = (
        "--data.record_tokens=999",
        "--trainer.max_epochs=1",
        "--data.val=null",
        "--data.minibatches_per_rollout=2",
    )
    run = runs.fit(tmp_path, *runs.UNTAUGHT, *options)
    rows = ratios.read(run)
    assert {row["update"] for row in rows} == {2}  # the first one is on-policy
    sequences = dict(runs.scalars(run)["clip/sequences"])[2]
    (found,) = ratios.by_length(rows).values()  # all responses are short
    assert found.sequences == len(rows) > 8
    assert found.clipped == pytest.approx(sequences)
    assert main_of_ratios([f"GSPO={run}"]) == 0
    clipped, first, second, length = ratios.updates(run)
    assert clipped == pytest.approx(dict(runs.scalars(run)["clip/tokens"])[2])
    norms = dict(runs.scalars(run)["optim/gradient_norm"])
    assert (first, second) == pytest.approx((norms[1], norms[2]))
    assert f"| GSPO | 1 to 63 | {len(rows)} | " in capsys.readouterr().out
    assert 0 < length < 64
