"""Two real processes over gloo train as one does, by DDP and by FSDP2."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSequenceClassification

from gspo_lightning.cli import main
from tests.runs.processes import Command
from tests.training.reward_models import runs

OPTIONS = [
    "--model.optimizer=torch.optim.SGD", "--model.optimizer.lr=0.2", "--model.optimizer.momentum=0.9",
    "--data.batch_size=5", "--data.micro_batch_size=2", "--trainer.max_epochs=1", "--trainer.gradient_clip_val=0.5",
]  # fmt: skip
STRATEGIES = {"ddp": "ddp", "fsdp2": '{"class_path": "gspo_lightning.policy.strategies.FSDP2Strategy"}'}

SAVES = '--trainer.callbacks+={"class_path": "tests.runs.saving.SaveAnywhere"}'


@pytest.mark.thorough
def test_a_run_does_not_depend_on_when_it_saves(tmp_path: Path) -> None:
    """Also before the first step, which alone is not dampened, and between the micro-batches of a step."""
    train, val = (runs.write(tmp_path / f"{i}.jsonl", runs.planted(9, seed=i)) for i in range(2))
    options = [f"--data.val={val}", *OPTIONS, "--model.optimizer.dampening=0.5", "--data.micro_batch_size=1"]
    one = runs.fit_reward(tmp_path / "one", train, *options)
    more = ["--trainer.devices=2", f"--trainer.strategy={STRATEGIES['fsdp2']}", SAVES]
    argv = runs.command(tmp_path / "two", train, *options, *more)
    assert Command(argv, ranks=2, log=tmp_path / "log").start().wait() == [0, 0], (tmp_path / "log").read_text()
    two = runs.newest(tmp_path / "two")
    assert (two / "checkpoints" / "moment-031.ckpt").exists()  # the last of 32; two are kept
    models = [AutoModelForSequenceClassification.from_pretrained(run / "model").state_dict() for run in (one, two)]
    for name, weight in models[0].items():
        torch.testing.assert_close(models[1][name], weight, atol=1e-6, rtol=1e-4)


@pytest.mark.long
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_two_ranks_train_like_one(tmp_path: Path, strategy: str) -> None:
    """23 pairs, 5 an update: ranks have 3 and 2, at last 2 and 1."""
    train, val = (runs.write(tmp_path / f"{i}.jsonl", runs.planted(23, seed=i)) for i in range(2))
    one = runs.fit_reward(tmp_path / "one", train, f"--data.val={val}", *OPTIONS)
    two = ["--trainer.devices=2", f"--trainer.strategy={STRATEGIES[strategy]}"]
    argv = runs.command(tmp_path / "two", train, f"--data.val={val}", *OPTIONS, *two)
    command = Command(argv, ranks=2, log=tmp_path / "log").start()
    assert command.wait() == [0, 0], (tmp_path / "log").read_text()
    other = runs.newest(tmp_path / "two")
    models = [AutoModelForSequenceClassification.from_pretrained(run / "model").state_dict() for run in (one, other)]
    assert float(models[0]["score.weight"].abs().max()) > 1e-3
    for name, weight in models[0].items():
        torch.testing.assert_close(models[1][name], weight, atol=2e-5, rtol=1e-3)
    first, second = (runs.results(run)["held_out"] for run in (one, other))
    assert first["pairs"] == second["pairs"]
    assert second["loss"] == pytest.approx(first["loss"], rel=1e-4)
    checkpoint = other / "checkpoints" / "last.ckpt"
    assert checkpoint.is_dir() == (strategy == "fsdp2")
    assert main(["export", str(checkpoint), str(tmp_path / "exported")]) == 0
    exported = AutoModelForSequenceClassification.from_pretrained(tmp_path / "exported").state_dict()
    assert all(torch.equal(exported[name], weight) for name, weight in models[1].items())
    again = Command([*argv, "--ckpt_path=last", "--trainer.max_epochs=2"], ranks=2, log=tmp_path / "log").start()
    assert again.wait() == [0, 0], (tmp_path / "log").read_text()
    whole = runs.fit_reward(tmp_path / "whole", train, f"--data.val={val}", *OPTIONS, "--trainer.max_epochs=2")
    resumed = AutoModelForSequenceClassification.from_pretrained(runs.newest(tmp_path / "two") / "model").state_dict()
    expected = AutoModelForSequenceClassification.from_pretrained(whole / "model").state_dict()
    for name, weight in expected.items():
        torch.testing.assert_close(resumed[name], weight, atol=5e-5, rtol=1e-3)
