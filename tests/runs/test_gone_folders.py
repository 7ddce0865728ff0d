"""A run folder that is deleted or moved during a run ends it with the folder's name, and does not come back."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch import Callback, LightningModule, Trainer

from gspo_lightning.training.callbacks.folder import run_folder
from tests.runs import runs

FEW = [*runs.UNTAUGHT, "--data.val=null", "--trainer.num_sanity_val_steps=0", "--trainer.max_epochs=3"]


class Vanishing(Callback):
    """Takes the run folder away after an update."""

    def __init__(self, update: int, how: str) -> None:
        self.update, self.how = update, how

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        if trainer.global_step == self.update and trainer.is_global_zero:
            folder = run_folder(trainer)
            if self.how == "deleted":
                while folder.exists():  # a thread of TensorBoard's writes meanwhile
                    shutil.rmtree(folder, ignore_errors=True)
            else:
                os.rename(folder, folder.with_name("moved"))


def vanishing(update: int, how: str) -> str:
    arguments = f'"init_args": {{"update": {update}, "how": "{how}"}}'
    return f'--trainer.callbacks+={{"class_path": "{__name__}.Vanishing", {arguments}}}'


RECORDING = ["--data.record_rollouts=true"]
ALONE = [*RECORDING, "--trainer.logger=false", "--data.record_tokens=0", "--trainer.enable_checkpointing=false"]
ASYNC = [*RECORDING, '--trainer.callbacks+={"class_path": "LastCheckpoint", "init_args": {"async_save": true}}']


@pytest.mark.thorough("in the last one", "recording alone", "saving in a thread")
@pytest.mark.parametrize(
    ("update", "how", "writes"),
    [(1, "deleted", RECORDING), (5, "moved", RECORDING), (2, "moved", ALONE), (2, "deleted", ASYNC)],
    ids=["in an iteration", "in the last one", "recording alone", "saving in a thread"],
)
def test_deleted_or_moved_run_folder_ends_the_run_with_its_name(
    update: int, how: str, writes: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs.fit(tmp_path / "root", *FEW, *writes, vanishing(update, how), code=1)
    said = capsys.readouterr().err
    assert "Traceback" not in said
    folder = tmp_path / "root" / ("" if "--trainer.logger=false" in writes else "quickstart/version_0")
    assert f"the folder {folder} is gone: it was deleted or moved" in said, said
    assert not folder.exists(), [str(path) for path in folder.rglob("*")]
