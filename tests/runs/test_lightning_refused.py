"""Options and callbacks of Lightning's that cannot mean here what they mean elsewhere: one message, nothing written."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml
from lightning.pytorch import Trainer

from gspo_lightning.cli import main
from gspo_lightning.core.errors import UserError
from gspo_lightning.policy.strategies.checks import check_strategy
from gspo_lightning.training.trainer_checks import check_trainer, iterations
from tests.runs import runs


def callback(name: str, **arguments: Any) -> list[str]:
    path = name if "." in name else f"lightning.pytorch.callbacks.{name}"
    return [f"--trainer.callbacks={json.dumps([{'class_path': path, 'init_args': arguments}])}"]


def stopping(monitor: str, **arguments: Any) -> list[str]:
    return callback("EarlyStopping", monitor=monitor, **arguments)


PLATEAU = ["--model.lr_scheduler=lightning.pytorch.cli.ReduceLROnPlateau"]
REFUSED = {
    "accumulation": (["--trainer.accumulate_grad_batches=2"], ["trainer.accumulate_grad_batches", "max_tokens_per_micro_batch"]),
    "accumulation by a callback": (callback("GradientAccumulationScheduler", scheduling={0: 3}), ["GradientAccumulationScheduler", "max_tokens_per_micro_batch"]),
    "an evaluation after every batch": (["--trainer.val_check_interval=1"], ["trainer.val_check_interval", "is 1 (batches)", "check_val_every_n_epoch"]),
    "two evaluations an iteration": (["--trainer.val_check_interval=0.5"], ["trainer.val_check_interval", "is 0.5", "check_val_every_n_epoch"]),
    "an evaluation every five minutes": (["--trainer.val_check_interval=00:00:05:00"], ["trainer.val_check_interval", "is 300 s", "check_val_every_n_epoch"]),
    "an evaluation every two batches": (["--trainer.val_check_interval=2", "--trainer.check_val_every_n_epoch=null"], ["is 2 (batches)"]),
    "an evaluation every no iterations": (["--trainer.check_val_every_n_epoch=0"], ["trainer.check_val_every_n_epoch", "at least 1", "data.val: null"]),
    "overfitting a batch": (["--trainer.overfit_batches=1"], ["trainer.overfit_batches", "data.prompts_per_rollout = 8"]),
    "overfitting a share": (["--trainer.overfit_batches=0.5"], ["trainer.overfit_batches", "data.prompts_per_rollout = 8"]),
    "half an iteration": (["--trainer.limit_train_batches=1"], ["trainer.limit_train_batches", "2 mini-batches"]),
    "a share of an iteration": (["--trainer.limit_train_batches=0.5"], ["trainer.limit_train_batches", "2 mini-batches"]),
    "no batches": (["--trainer.limit_train_batches=0"], ["trainer.limit_train_batches", "2 mini-batches"]),
    "some evaluation batches": (["--trainer.limit_val_batches=1"], ["trainer.limit_val_batches", "data.evaluation.limit"]),
    "a small first evaluation": (["--trainer.num_sanity_val_steps=2"], ["trainer.num_sanity_val_steps", "-1", "0"]),
    "barebones": (["--trainer.barebones=true"], ["trainer.barebones", "model.metrics: off"]),
    "float64": (["--trainer.precision=64-true"], ["trainer.precision", "'64-true'", "32-true"]),
    "8 bits": (["--trainer.precision=transformer-engine"], ["trainer.precision", "8 bits", "bf16-mixed"]),
    "forked processes": (["--trainer.strategy=ddp_notebook"], ["trainer.strategy", "'fork'", "use ddp"]),
    "spawned processes": (["--trainer.strategy=ddp_spawn"], ["trainer.strategy", "'spawn'", "use ddp"]),
    "DeepSpeed": (["--trainer.strategy=deepspeed_stage_2"], ["trainer.strategy", "deepspeed_stage_2", "--config fsdp2"]),
    "Lightning's older averaging": (callback("StochasticWeightAveraging", swa_lrs=0.01), ["StochasticWeightAveraging", "EMAWeightAveraging"]),
    "a batch size to find": (callback("BatchSizeFinder"), ["BatchSizeFinder", "max_tokens_per_micro_batch"]),
    "a learning rate to find": (callback("LearningRateFinder"), ["LearningRateFinder", "gspo compare"]),
    "pruning": (callback("ModelPruning", pruning_fn="l1_unstructured"), ["ModelPruning", "exported model"]),
    "freezing": (callback("BackboneFinetuning"), ["BackboneFinetuning", "model.lora"]),
    "spikes of the loss": (callback("SpikeDetection"), ["SpikeDetection", "docs/collapse.md"]),
    "a checkpoint of an exception": (callback("OnExceptionCheckpoint", dirpath="x"), ["OnExceptionCheckpoint", "LastCheckpoint"]),
    "two averages": (["--trainer.callbacks=[{class_path: WeightAveraging}, {class_path: EMAWeightAveraging}]"], ["one average"]),
    "two last checkpoints": (callback("ModelCheckpoint", save_last=True), ["ModelCheckpoint.save_last", "last.ckpt"]),
    "a metric that does not exist": (stopping("val/acuracy", mode="max"), ["EarlyStopping.monitor", "'val/acuracy'", "did you mean val/accuracy?"]),
    "a metric of supervised learning": (stopping("val_loss"), ["EarlyStopping.monitor", "'val_loss' is not a metric"]),
    "a picture": (callback("ModelCheckpoint", monitor="ratio/histogram"), ["ModelCheckpoint.monitor", "is not a metric"]),
    "the wrong way round": (stopping("val/accuracy"), ["EarlyStopping.mode", "more of 'val/accuracy' is better", "mode: max"]),
    "the worst checkpoints": (callback("ModelCheckpoint", monitor="reward/mean"), ["ModelCheckpoint.mode", "mode: max"]),
    "a metric without prompts": ([*stopping("val/accuracy", mode="max"), "--data.val=null"], ["no held-out prompts", "data.val"]),
    "pass@k of another k": (stopping("val/pass@8", mode="max"), ["val/pass@8", "data.evaluation.pass_at"]),
    "what is not measured": ([*stopping("response/repetition"), "--model.metrics=off"], ["EarlyStopping.monitor", "model.metrics: full"]),
}  # fmt: skip


BY_THE_COMMAND = (
    "barebones", "float64", "8 bits", "forked processes", "spawned processes", "DeepSpeed", "two averages",
    "accumulation", "accumulation by a callback", "two evaluations an iteration", "half an iteration", "pruning",
    "two last checkpoints", "a metric that does not exist", "the wrong way round",
)  # fmt: skip
"""What is refused before there is a trainer, and of the rest one of each kind."""


@pytest.mark.parametrize("name", BY_THE_COMMAND)
def test_option_is_refused_before_anything_is_written(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given, words = REFUSED[name]
    root = tmp_path / "root"
    argv = ["fit", f"--config={runs.QUICKSTART}", *runs.SMALL, "--model.cold_start=null"]
    assert main([*argv, f"--trainer.default_root_dir={root}", *given]) == 2
    error = capsys.readouterr().err
    assert "Traceback" not in error
    message = error[error.index("error: ") :]
    for word in words:
        assert word in message, message
    assert len(message.strip().splitlines()) <= 3, message
    assert not root.exists() or not list(root.rglob("*"))


def trainer_of(given: list[str]) -> Trainer:
    """As the command makes it of these options."""
    words = (option.removeprefix("--trainer.").partition("=") for option in given if option.startswith("--trainer."))
    options = {"num_sanity_val_steps": -1} | {name: yaml.safe_load(value) for name, _, value in words}
    callbacks = [class_from(entry["class_path"])(**entry["init_args"]) for entry in options.pop("callbacks", [])]
    return Trainer(logger=False, accelerator="cpu", callbacks=callbacks, **options)


def class_from(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


SETTINGS = SimpleNamespace(prompts_per_rollout=8, updates_per_iteration=2)


@pytest.mark.parametrize("name", [name for name in REFUSED if name not in BY_THE_COMMAND])
def test_trainer_with_an_unsupported_option_is_refused(name: str) -> None:
    given, words = REFUSED[name]
    held_out = None if "--data.val=null" in given else object()
    data = SimpleNamespace(settings=SETTINGS, val=held_out, evaluation=SimpleNamespace(pass_at=(1,)))
    level = "off" if "--model.metrics=off" in given else "full"
    with pytest.raises(UserError) as refused:
        check_trainer(cast(Any, data), cast(Any, level), trainer_of(given))
    for word in words:
        assert word in str(refused.value)
    assert len(str(refused.value).splitlines()) <= 3


def test_trainer_without_unsupported_options_is_accepted() -> None:
    data = SimpleNamespace(settings=SETTINGS, val=None, evaluation=SimpleNamespace(pass_at=(1,)))
    check_trainer(cast(Any, data), "full", trainer_of([]))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([*PLATEAU, "--model.lr_scheduler.monitor=nope"], ["model.lr_scheduler.monitor", "'nope' is not a metric"]),
        ([*PLATEAU, "--model.lr_scheduler.monitor=reward/mean"], ["model.lr_scheduler.mode", "mode: max"]),
        (["--model.lr_scheduler=torch.optim.lr_scheduler.ReduceLROnPlateau"], ["lightning.pytorch.cli", "monitor"]),
        (callback("tests.runs.of_a_user.Accumulates"), ["trainer.accumulate_grad_batches", "is 2"]),
        (stopping("moe/load_max_violation"), ["monitor", "moe/load_max_violation", "not measured in this run"]),
    ],
)
def test_bad_monitor_or_accumulating_callback_is_one_message(
    given: list[str], words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs.fit(tmp_path, *runs.UNTAUGHT, "--data.val=null", *given, code=2)
    error = capsys.readouterr().err
    assert "Traceback" not in error
    message = error[error.index("error: ") :]
    for word in words:
        assert word in message, message


class DeepSpeedStrategy:
    """Has the name; the package is not installed."""


def test_an_engine_of_its_own_is_known_by_its_name() -> None:
    with pytest.raises(UserError, match="its own backward pass and optimizer step"):
        check_strategy(DeepSpeedStrategy())


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"max_epochs": 5}, 5),
        ({"max_epochs": -1}, None),
        ({"max_epochs": -1, "max_steps": 12}, 3),
        ({"max_epochs": -1, "max_steps": 13}, 4),
        ({"max_epochs": 2, "max_steps": 13}, 2),
        ({"max_epochs": 9, "max_steps": 13}, 4),
    ],
)
def test_iterations_of_a_run_by_either_limit(options: dict[str, int], expected: int | None) -> None:
    trainer = Trainer(logger=False, enable_checkpointing=False, accelerator="cpu", **options)
    assert iterations(trainer, updates=4) == expected
