"""Mistakes in flags and files: the field at its level, what it must be or the nearest right word, nothing of the parser."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gspo_lightning.cli import main
from tests.runs import runs

FLAGS = {
    "unknown parameter of an objective": (
        "--model.objective=GSPO --model.objective.clip_lwo=1e-4",
        ["model.objective.clip_lwo", "did you mean clip_low?"],
    ),
    "unknown parameter, another spelling": (
        "--model.objective.init_args.clip_lwo 1e-4",
        ["model.objective.clip_lwo", "did you mean clip_low?"],
    ),
    "text for a parameter of an objective": (
        "--model.objective.clip_low abc",
        ["model.objective.clip_low", "is 'abc'", "must be a number"],
    ),
    "unknown parameter of a default source": (
        "--data.rollouts.max_rowz 3",
        ["data.rollouts.max_rowz", "did you mean max_rows?"],
    ),
    "text for a parameter of a default source": (
        "--data.rollouts.max_rows abc",
        ["data.rollouts.max_rows", "a whole number"],
    ),
    "unknown parameter of an optimizer": ("--model.optimizer.lrr 1e-4", ["model.optimizer.lrr", "did you mean lr?"]),
    "text for a learning rate": ("--model.optimizer.lr abc", ["model.optimizer.lr", "is 'abc'", "must be a number"]),
    "unknown optimizer": ("--model.optimizer AdamWW", ["model.optimizer", "did you mean AdamW?"]),
    "setting without its section": ("--group_size 8", ["group_size", "did you mean data.group_size?"]),
    "misspelt, without its section": ("--group_sise=8", ["group_sise", "did you mean data.group_size?"]),
    "component without its section": ("--objective GSPO", ["objective", "did you mean model.objective?"]),
    "Lightning's without its section": ("--max_epochs 3", ["max_epochs", "did you mean trainer.max_epochs?"]),
    "parameter without its way": ("--clip_low 1e-4", ["clip_low", "did you mean model.objective.init_args.clip_low?"]),
    "text for a number of epochs": (
        "--trainer.max_epochs three",
        ["trainer.max_epochs", "is 'three'", "a whole number"],
    ),
    "text for a group size": ("--data.group_size eight", ["data.group_size", "is 'eight'", "a whole number"]),
    "half a group": ("--data.group_size 2.5", ["data.group_size", "is 2.5", "a whole number"]),
    "a choice that is none": (
        "--data.truncated_responses drop",
        ["data.truncated_responses", "is 'drop'", "one of keep, mask, penalise"],
    ),
    "unknown part of the evaluation": (
        "--data.evaluation.smaples 2",
        ["data.evaluation.smaples", "did you mean samples?"],
    ),
    "text for a part of the evaluation": (
        "--data.evaluation.samples two",
        ["data.evaluation.samples", "a whole number"],
    ),
    "unknown part of adapters": ("--model.lora.alpa 3", ["model.lora.alpa", "did you mean alpha?"]),
    "missing package of a logger": (
        "--trainer.logger WandbLogger",
        ["trainer.logger", "WandbLogger needs the package wandb", "pip install wandb"],
    ),
    "unknown logger": ("--trainer.logger WandbLoger", ["trainer.logger", "did you mean WandbLogger?"]),
    "unknown callback": ("--trainer.callbacks EarlyStoping", ["trainer.callbacks", "did you mean EarlyStopping?"]),
    "callback without what it needs": (
        "--trainer.callbacks EarlyStopping",
        ["trainer.callbacks.monitor", "EarlyStopping cannot run without it"],
    ),
    "precision that is none": ("--trainer.precision bf16-mixd", ["trainer.precision", "bf16-mixed"]),
    "rewards without names": (
        "--data.rewards ExactMatch",
        ["data.rewards", "a mapping", "rewards: {name: ExactMatch}"],
    ),
    "unknown parameter of a prompt set": (
        '--data.train {"class_path":"ChainTask","init_args":{"sise":3}}',
        ["data.train.init_args.sise", "did you mean size?"],
    ),
    "unknown parameter of a reward": (
        '--data.rewards {"c":{"class_path":"ExactMatch","init_args":{"markr":"#"}}}',
        ["data.rewards.c.init_args.markr", "did you mean marker?"],
    ),
    "text for a seed": ("--seed_everything abc", ["seed_everything", "is 'abc'", "a whole number"]),
    "flag without a value": ("--data.group_size", ["data.group_size", "has no value"]),
    "word without a flag": ("extra", ["'extra' belongs to no flag"]),
}
FILES = {
    "unknown parameter of an objective": (
        "model: {objective: {class_path: GSPO, init_args: {clip_lwo: 1.0e-4}}}",
        ["model.objective.init_args.clip_lwo", "did you mean clip_low?"],
    ),
    "text for a parameter of an objective": (
        "model: {objective: {class_path: GSPO, init_args: {clip_low: abc}}}",
        ["model.objective.init_args.clip_low", "must be a number"],
    ),
    "parameter beside the class": (
        "model: {objective: {class_path: GSPO, clip_low: 1.0e-4}}",
        ["model.objective.clip_low", "belongs in init_args", "init_args: {clip_low: ...}"],
    ),
    "setting without its section": ("group_size: 8", ["group_size", "did you mean data.group_size?"]),
    "text for a group size": ("data: {group_size: eight}", ["data.group_size", "a whole number"]),
    "unknown part of the evaluation": (
        "data: {evaluation: {smaples: 2}}",
        ["data.evaluation.smaples", "did you mean samples?"],
    ),
    "unknown parameter of a reward": (
        "data: {rewards: {c: {class_path: ExactMatch, init_args: {markr: x}}}}",
        ["data.rewards.c.init_args.markr", "did you mean marker?"],
    ),
    "unknown reward": (
        "data: {rewards: {c: {class_path: MathAnswer}}}",
        ["data.rewards.c", "did you mean MathVerifier?"],
    ),
    "missing package of a logger": (
        "trainer: {logger: {class_path: lightning.pytorch.loggers.WandbLogger, init_args: {project: x}}}",
        ["trainer.logger", "needs the package wandb", "pip install wandb"],
    ),
    "unknown callback": (
        "trainer: {callbacks: [{class_path: EarlyStoping}]}",
        ["trainer.callbacks[0]", "did you mean EarlyStopping?"],
    ),
    "unknown parameter of a callback": (
        "trainer: {callbacks: [{class_path: LastCheckpoint, init_args: {keep_lst: 3}}]}",
        ["trainer.callbacks[0].init_args.keep_lst", "did you mean keep_last?"],
    ),
    "a section that is a text": ("data: nothing", ["data", "nothing"]),
    "a list for a text": ("model: {name_or_path: [a, b]}", ["model.name_or_path", "a text"]),
    "a misspelt section": ("trianer: {max_epochs: 3}", ["trianer", "did you mean trainer?"]),
}
INSIDES = re.compile(
    r"Traceback|jsonargparse|Namespace|NestedArg|ActionTypeHint|<class |typing\.|[Pp]arser key|Does not validate"
)


def refused(argv: list[str], words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", f"--config={runs.QUICKSTART}", "--model.cold_start=null", *argv]) == 2
    error = capsys.readouterr().err
    assert not INSIDES.search(error), error
    assert len(error.strip().splitlines()) <= 6, error
    assert len(error) < 600, error
    for word in words:
        assert word in error, error
    assert error.splitlines()[0].startswith(f"error: {words[0]}: ") or words[0].startswith("'"), error


@pytest.mark.parametrize("mistake", FLAGS)
def test_a_mistake_in_a_flag(mistake: str, capsys: pytest.CaptureFixture[str]) -> None:
    flags, words = FLAGS[mistake]
    refused(flags.split(" "), words, capsys)


@pytest.mark.parametrize("mistake", FILES)
def test_a_mistake_in_a_file(mistake: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content, words = FILES[mistake]
    (tmp_path / "more.yaml").write_text(content + "\n")
    refused([f"--config={tmp_path / 'more.yaml'}"], words, capsys)
