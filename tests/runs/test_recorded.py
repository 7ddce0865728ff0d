"""A run that was recorded, again: bit by bit, by another objective, without a generator, with the recorded verdicts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gspo_lightning.rollouts import GroupedSampler
from tests.runs import runs

OPTIONS = [
    "--model.cold_start=null",
    "--data.max_response_tokens=6",
    "--data.resample_dead_groups=8",
    '--data.rewards={"digit": {"class_path": "FormatReward", "init_args": {"pattern": "[0-9].*"}}}',
]
"""A reward that leaves some groups dead, so that others are sampled in their place."""


def replay(root: Path, recorded: Path, *arguments: str, code: int = 0) -> Path:
    source = ["--data.rollouts=Recorded", f"--data.rollouts.path={recorded / 'rollouts'}"]
    return runs.fit(root, *OPTIONS, *source, *arguments, code=code)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = runs.fit(tmp_path_factory.mktemp("recorded"), *OPTIONS, "--data.record_rollouts=true")
    assert sorted(f.name for f in (run / "rollouts").iterdir()) == ["000000.jsonl", "000001.jsonl"]
    assert max(v for _, v in runs.scalars(run)["reward/resampled_groups"]) > 0  # what was replaced is recorded, too
    return run


@pytest.mark.thorough
def test_a_replay_is_the_same_training_bit_by_bit(
    recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("something was sampled")

    monkeypatch.setattr(GroupedSampler, "generate", refuse)
    again = replay(tmp_path, recorded, "--trainer.limit_val_batches=0")
    assert runs.largest_difference(runs.weights(again), runs.weights(recorded)) == 0.0
    theirs = {tag: values for tag, values in runs.scalars(recorded).items() if not tag.startswith("val/")}
    assert runs.scalars(again) == theirs


@pytest.mark.thorough
def test_another_objective_sees_the_same_data(recorded: Path, tmp_path: Path) -> None:
    other = replay(tmp_path, recorded, "--model.objective=GRPO")
    assert runs.largest_difference(runs.weights(other), runs.weights(recorded)) > 0
    for tag in ("reward/mean", "response/length", "policy/entropy"):
        assert runs.scalars(other)[tag][0] == runs.scalars(recorded)[tag][0]
    assert runs.scalars(other)["reward/mean"] == runs.scalars(recorded)["reward/mean"]  # whatever the policy is by now


def test_recorded_rewards_are_taken_without_scoring(recorded: Path, tmp_path: Path) -> None:
    nothing = ['--data.rewards={"short": {"class_path": "FormatReward", "init_args": {"pattern": "never"}}}']
    again = replay(tmp_path, recorded, "--data.rollouts.rewards=recorded", *nothing, "--trainer.limit_val_batches=0")
    assert runs.largest_difference(runs.weights(again), runs.weights(recorded)) == 0.0
    assert runs.scalars(again)["reward/parts/digit"] == runs.scalars(recorded)["reward/parts/digit"]


@pytest.mark.thorough
def test_predictions_are_recordings(recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Sampled at the training temperature they can be trained on; greedy ones are refused with the reason."""
    from gspo_lightning.cli import main

    options = [f"--config={runs.QUICKSTART}", *runs.SMALL, *OPTIONS, f"--trainer.default_root_dir={tmp_path}"]
    train = '--data.predict={"class_path": "ChainTask", "init_args": {"split": "train", "size": 8}}'
    whole = ["--data.evaluation.limit=null", "--data.evaluation.samples=4", "--data.evaluation.temperature=1"]
    assert main(["predict", *options, train, *whole]) == 0
    (file,) = tmp_path.rglob("predictions.jsonl")
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(rows) == 8 * 4
    replayed = ["--data.rollouts=Recorded", f"--data.rollouts.path={file}", "--data.resample_dead_groups=0"]
    small = '--data.train={"class_path": "ChainTask", "init_args": {"split": "train", "size": 8}}'
    run = runs.fit(tmp_path, *OPTIONS, small, *replayed)
    mean = sum(len(row["completion_ids"]) for row in rows) / 32
    assert [v for _, v in runs.scalars(run)["response/length"]] == pytest.approx(
        [mean] * 4
    )  # two iterations of two updates: the same rows twice

    file.write_text("".join(json.dumps(row | {"sampling": {"temperature": 0.0}}) + "\n" for row in rows))
    capsys.readouterr()
    runs.fit(tmp_path, *OPTIONS, small, *replayed, code=2)
    assert "was sampled with temperature 0.0, but the run uses 1.0" in capsys.readouterr().err


def test_a_recording_that_is_not_there_is_said_before_anything_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs.fit(tmp_path, *OPTIONS, "--data.rollouts=Recorded", "--data.rollouts.path=nowhere.jsonl", code=2)
    assert "'nowhere.jsonl' does not exist" in capsys.readouterr().err
    assert not list(tmp_path.rglob("version_*"))
