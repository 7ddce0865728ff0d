"""Small real runs through ``main(argv)``, shared by the tests of this folder."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.summary.writer import event_file_writer

from gspo_lightning.cli import main
from gspo_lightning.commands.export import sharded_weights
from gspo_lightning.core.types import MiniBatch
from gspo_lightning.loop.experience.loader import ExperienceLoader
from gspo_lightning.policy.load.loading import load_policy
from gspo_lightning.policy.load.model_settings import ModelSettings
from tests import ROOT

event_file_writer._global_uid = event_file_writer.AtomicCounter(10**6)
"""Event files are read in the order of their names, second and number: of a run and its resume within one second of
this process, number 100 would come before 99."""

ACCELERATOR = os.environ.get("GSPO_TEST_ACCELERATOR")
QUICKSTART = ROOT / "configs" / "quickstart.yaml"
FEW_PROMPTS = "--data.train.size=512"
NO_PICTURE = '{"class_path": "RunSummary", "init_args": {"report": false}}'
SMALL = [
    FEW_PROMPTS, f"--trainer.callbacks=[{NO_PICTURE}]",
    "--data.prompts_per_rollout=8", "--data.group_size=4", "--data.minibatches_per_rollout=2",
    "--data.max_response_tokens=12", "--data.reward_workers=1", "--trainer.max_epochs=2",
    "--trainer.check_val_every_n_epoch=2", "--data.evaluation.limit=16",
]  # fmt: skip
"""The quickstart, but a second instead of a minute, and no picture; where learning is not the subject."""
UNTAUGHT = [
    "--model.cold_start=null",
    f"--plugins={Path(__file__).with_name('graded.py')}",
    '--data.rewards={"graded": "Graded"}',
]
"""No cold start, and a reward that moves a model which cannot do anything yet."""


def fit(root: Path, *arguments: str, small: bool = True, config: Path = QUICKSTART, code: int = 0) -> Path:
    """``gspo fit`` in this process; returns the newest run folder. ``code`` is the expected exit code."""
    options = [option for option in SMALL if small and (option != FEW_PROMPTS or config == QUICKSTART)]
    callbacks = [argument for argument in arguments if argument.startswith("--trainer.callbacks=[")]
    if small and code == 0 and callbacks and "RunSummary" not in callbacks[-1]:  # which replace those of SMALL
        arguments = (*arguments, f"--trainer.callbacks+={NO_PICTURE}")
    argv = ["fit", f"--config={config}", *options, f"--trainer.default_root_dir={root}", *arguments]
    assert main(_on_device(argv)) == code
    runs = sorted((root / config.stem).glob("version_*"), key=lambda p: int(p.name.split("_")[1]))
    return runs[-1] if runs else root


def _on_device(argv: list[str]) -> list[str]:
    """On the CPU, whatever this machine has; with ``GSPO_TEST_ACCELERATOR=gpu`` (``make test-gpu``), on its GPU.

    Not runs of several processes, which would need as many.
    """
    if ACCELERATOR is None or any(re.search(r"devices=[2-9]", argument) for argument in argv):
        return argv
    return [re.sub("accelerator=cpu", f"accelerator={ACCELERATOR}", a) for a in argv] + (
        [] if any("--trainer.accelerator=" in a for a in argv) else [f"--trainer.accelerator={ACCELERATOR}"]
    )


@contextmanager
def interrupted(when: Callable[[ExperienceLoader], bool], by: signal.Signals = signal.SIGINT) -> Iterator[None]:
    """Inside, runs of this process get a signal behind each mini-batch for whose loader ``when`` is true."""
    original = ExperienceLoader.mark_trained

    def mark(self: ExperienceLoader) -> None:
        original(self)
        if when(self):
            os.kill(os.getpid(), by)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ExperienceLoader, "mark_trained", mark)
        yield


def handed_out(monkeypatch: pytest.MonkeyPatch) -> list[MiniBatch]:
    """The mini-batches of runs of this process, in the order in which they are trained on."""
    mini_batches: list[MiniBatch] = []
    own = ExperienceLoader.__iter__

    def noted(self: ExperienceLoader) -> Iterator[MiniBatch]:
        for batch in own(self):
            mini_batches.append(batch)
            yield batch

    monkeypatch.setattr(ExperienceLoader, "__iter__", noted)
    return mini_batches


def share_cold_start(made: Path, root: Path) -> None:
    """Let a run find the cold starts that other runs made, and find its own among them."""
    root.mkdir(parents=True, exist_ok=True)
    (root / "cold_start").symlink_to(made / "cold_start")


def checkpoint(run: Path) -> dict[str, Any]:
    """The last checkpoint, loaded without unpickling code."""
    loaded: dict[str, Any] = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True, map_location="cpu")
    return loaded


def weights(run: Path) -> dict[str, torch.Tensor]:
    """The policy's weights of the last checkpoint, which may be a folder of shards."""
    last = run / "checkpoints" / "last.ckpt"
    if last.is_dir():
        return sharded_weights(last)
    return {k: v for k, v in checkpoint(run)["state_dict"].items() if k.startswith("policy.")}


def largest_difference(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    """Over all weights; the names must agree."""
    assert a.keys() == b.keys()
    return max(float((a[k] - b[k]).abs().max()) for k in a)


def untrained() -> dict[str, torch.Tensor]:
    """The policy's weights that the quickstart starts from without a cold start."""
    policy = load_policy(ModelSettings("tiny-qwen3", seed=1))
    return {f"policy.{name}": weight for name, weight in policy.state_dict().items()}


def events(run: Path) -> EventAccumulator:
    """The whole event folder, read back."""
    reader = EventAccumulator(str(run), size_guidance={"scalars": 0, "histograms": 0, "tensors": 0})
    reader.Reload()
    return reader


def scalars(run: Path) -> dict[str, list[tuple[int, float]]]:
    """Every scalar tag that does not measure time, as (step, value)."""
    reader = events(run)
    tags = [t for t in reader.Tags()["scalars"] if not t.startswith(("time/", "throughput/", "parallel/"))]
    return {t: [(e.step, e.value) for e in reader.Scalars(t)] for t in tags}


def summary(run: Path) -> dict[str, Any]:
    """``summary.json``."""
    content: dict[str, Any] = json.loads((run / "summary.json").read_text())
    return content
