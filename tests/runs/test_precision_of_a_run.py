"""A run keeps its precision: a checkpoint names it, and resuming in another one is refused by name."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import lightning.pytorch as L
import pytest
import torch

from gspo_lightning import GSPOModule, PromptDataModule
from gspo_lightning.core.errors import UserError
from gspo_lightning.data.prompts import ChainTask
from gspo_lightning.rewards import ExactMatch
from gspo_lightning.training.callbacks import AtomicCheckpointIO
from gspo_lightning.training.callbacks.checkpoints import LastCheckpoint
from tests.runs import runs

SHORT = [
    *runs.UNTAUGHT, "--data.val=null", "--data.prompts_per_rollout=2", "--data.group_size=2", "--trainer.max_epochs=1",
]  # fmt: skip


@pytest.mark.thorough
def test_another_precision_is_refused_by_name_and_another_word_for_the_same_one_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = runs.fit(tmp_path, *SHORT)
    assert runs.checkpoint(run)["gspo_precision"] == "32-true"
    again = [*SHORT, "--trainer.max_epochs=2", "--ckpt_path=last"]
    runs.fit(tmp_path, *again, "--trainer.precision=bf16-mixed", code=2)
    error = capsys.readouterr().err
    assert "trainer.precision: 32-true -> bf16-mixed" in error
    assert "--allow_changed_config" in error
    assert runs.fit(tmp_path, *again, "--trainer.precision=32") == run
    assert "trainer.precision" not in capsys.readouterr().err
    assert len(runs.scalars(run)["loss"]) == 4
    allowed = [*SHORT, "--trainer.max_epochs=3", "--ckpt_path=last", "--allow_changed_config=true"]
    runs.fit(tmp_path, *allowed, "--trainer.precision=bf16-mixed")
    assert "changed since the checkpoint: trainer.precision: 32-true -> bf16-mixed" in capsys.readouterr().err
    assert runs.checkpoint(run)["gspo_precision"] == "bf16-mixed"


def resumed(root: Path, checkpoint: Path | None, precision: str) -> Path:
    """A run through Lightning's own trainer, of one iteration more than its checkpoint; returns the newest one."""
    module = GSPOModule("tiny-qwen3", optimizer=partial(torch.optim.AdamW, lr=2e-4, weight_decay=0.0))
    data = PromptDataModule(
        train=ChainTask("train", size=8), rewards={"correct": ExactMatch()}, group_size=2, prompts_per_rollout=2,
        minibatches_per_rollout=2, max_prompt_tokens=16, max_response_tokens=4, seed=1,
    )  # fmt: skip
    trainer = L.Trainer(
        max_epochs=1 if checkpoint is None else 2, accelerator="cpu", callbacks=[LastCheckpoint()],
        plugins=[AtomicCheckpointIO()], default_root_dir=str(root), enable_model_summary=False, precision=precision,
        enable_progress_bar=False, num_sanity_val_steps=0, logger=False,
    )  # fmt: skip
    try:
        trainer.fit(module, datamodule=data, ckpt_path=checkpoint, weights_only=True)
    finally:
        data.teardown("fit")  # as the command line does: a refused run has started workers
    return sorted(root.rglob("last.ckpt"))[-1]


def test_lightnings_own_trainer_refuses_another_precision(tmp_path: Path) -> None:
    last = resumed(tmp_path / "first", None, "32-true")
    with pytest.raises(UserError, match=r"(?s)trainer.precision: is 'bf16-mixed'.*was trained in '32-true'.*fix: "):
        resumed(tmp_path / "second", last, "bf16-mixed")


@pytest.mark.thorough
def test_the_same_precision_and_a_checkpoint_without_one_are_taken(tmp_path: Path) -> None:
    last = resumed(tmp_path / "first", None, "32-true")
    resumed(tmp_path / "second", last, "32-true")
    older = torch.load(last, weights_only=True)
    del older["gspo_precision"]  # a checkpoint that was written before this record
    torch.save(older, tmp_path / "older.ckpt")
    resumed(tmp_path / "third", tmp_path / "older.ckpt", "bf16-mixed")
