"""A record may ask for shorter responses than the run allows: in every way of sampling."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gspo_lightning.cli import main
from tests.runs import runs

LIMITS = {"1+1:": 3, "1+2:": 12, "1+3:": None, "1+4:": 99, "1+5:": 1}
WANTED = {"1+1:": 3, "1+2:": 12, "1+3:": 12, "1+4:": 12, "1+5:": 1}


def write(path: Path, **changed: object) -> Path:
    rows = [{"prompt": p, "answer": "2", "max_response_tokens": n} | changed for p, n in LIMITS.items()]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.thorough
@pytest.mark.parametrize("rollouts", ["GroupedSampler", "TransformersGenerate", "partial"])
def test_no_response_is_longer_than_its_record_says(tmp_path: Path, rollouts: str) -> None:
    how = ["--data.prompts_in_flight=5"] if rollouts == "partial" else [f"--data.rollouts={rollouts}"]
    run = runs.fit(
        tmp_path, *(o for o in runs.SMALL if "train.size" not in o), *runs.UNTAUGHT,
        f"--data.train={write(tmp_path / 'p.jsonl')}", "--data.record_rollouts=true", "--data.val=null",
        "--data.prompts_per_rollout=4", "--trainer.max_epochs=3", *how, small=False,
    )  # fmt: skip
    longest: dict[str, int] = {}
    for file in (run / "rollouts").glob("*.jsonl"):
        for line in file.read_text().splitlines():
            row = json.loads(line)
            longest[row["prompt"]] = max(longest.get(row["prompt"], 0), len(row["completion_ids"]))
            assert row["finish_reason"] in ("length", "stop")
    assert longest == {prompt: n for prompt, n in WANTED.items() if prompt in longest}
    assert len(longest) >= 4


@pytest.mark.parametrize("value", [0, -1, 2.5, "many", True])
def test_a_limit_that_is_no_number_of_tokens_is_named(
    tmp_path: Path, value: object, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "p.jsonl", max_response_tokens=value)
    assert main(["fit", f"--config={runs.QUICKSTART}", *runs.UNTAUGHT, f"--data.train={path}"]) == 2
    assert "p.jsonl:1: 'max_response_tokens' is not a whole number above 0" in capsys.readouterr().err
