"""Evaluation is independent of training: its own temperature, samples and length; unbiased pass@k."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.runs import runs

SAMPLED = [
    "--data.evaluation.samples=4", "--data.evaluation.temperature=1.0", "--data.evaluation.pass_at=[1,4]",
    "--data.evaluation.limit=64",
]  # fmt: skip


@pytest.mark.thorough
def test_avg_and_pass_at_k_are_logged(taught: Path) -> None:
    scalars = runs.scalars(runs.fit(taught, *SAMPLED, "--trainer.max_epochs=1"))
    average, best = scalars["val/accuracy"][0][1], scalars["val/pass@4"][0][1]
    assert scalars["val/pass@1"][0][1] == pytest.approx(average)
    assert average < best <= min(1.0, 4 * average)


@pytest.mark.thorough
def test_evaluation_has_its_own_length(taught: Path) -> None:
    run = runs.fit(taught, "--data.evaluation.max_response_tokens=1", "--trainer.max_epochs=1")
    scalars = runs.scalars(run)
    assert scalars["val/response_length"][0] == (0, 1.0)
    assert scalars["response/length"][0][1] > 1.0


@pytest.mark.thorough
def test_evaluation_never_changes_training(taught: Path, tmp_path: Path) -> None:
    with_evaluation = runs.fit(taught, *SAMPLED, "--trainer.check_val_every_n_epoch=1")
    runs.share_cold_start(taught, tmp_path / "without")
    without = runs.fit(tmp_path / "without", "--data.val=null", "--trainer.num_sanity_val_steps=0")
    assert runs.largest_difference(runs.weights(with_evaluation), runs.weights(without)) == 0.0


@pytest.mark.thorough
def test_final_accuracy_is_that_of_the_final_policy(taught: Path) -> None:
    run = runs.fit(taught, "--trainer.check_val_every_n_epoch=3")  # two iterations: no regular evaluation at the end
    assert [step for step, _ in runs.scalars(run)["val/accuracy"]] == [0, 4]
    assert runs.summary(run)["evaluated_at_update"] == 4


@pytest.mark.thorough("False")
@pytest.mark.parametrize("same", [True, False])
def test_held_out_prompts_that_are_trained_on_are_said_once(
    same: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name, first in {"train": 0, "again": 0, "other": 5}.items():
        lines = [json.dumps({"prompt": f"{i}+1:", "answer": str(i + 1)}) + "\n" for i in range(first, first + 9)]
        (tmp_path / f"{name}.jsonl").write_text("".join(lines))
    held_out = tmp_path / ("again.jsonl" if same else "other.jsonl")  # the content counts, not the name
    data = [f"--data.train={tmp_path / 'train.jsonl'}", f"--data.val={held_out}"]
    own = [option for option in runs.SMALL if option != runs.FEW_PROMPTS]
    runs.fit(tmp_path, *own, *runs.UNTAUGHT, *data, "--trainer.max_epochs=1", small=False)
    said = [record.message for record in caplog.records if record.levelname == "WARNING"]
    found = [text for text in said if "data.val: the same 9 prompts as data.train" in text]
    assert len(found) == same
