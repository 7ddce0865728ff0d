"""Module, run folder and coming evaluation of a trainer, as callbacks need them."""

from __future__ import annotations

import time
from pathlib import Path

from lightning.pytorch import LightningModule, Trainer

from gspo_lightning.core.errors import UserError
from gspo_lightning.training.module import GSPOModule


def gspo_module(pl_module: LightningModule) -> GSPOModule:
    """Return the module that a callback was called with, as a :class:`GSPOModule`.

    Raises:
        UserError: another LightningModule is trained.
    """
    if not isinstance(pl_module, GSPOModule):
        name = type(pl_module).__name__
        raise UserError("trainer.callbacks", f"one of them works with a GSPOModule, but {name} is trained")
    return pl_module


def run_folder(trainer: Trainer) -> Path:
    """Return the folder of this run, the same on every rank (must be called on every rank)."""
    return gspo_module(trainer.lightning_module).folder


def evaluation_follows(trainer: Trainer, *, at_the_end: bool = False) -> bool:
    """True if Lightning evaluates right after this batch, before the next iteration (or at the end of the run).

    Checkpoints are saved after the evaluation: one from before it would resume without the evaluation.
    """
    every = 1 if at_the_end else trainer.check_val_every_n_epoch or 1
    evaluates = gspo_module(trainer.lightning_module).data.val is not None and trainer.enable_validation
    is_last_batch = trainer.fit_loop.epoch_loop.batch_progress.is_last_batch
    return evaluates and is_last_batch and (trainer.current_epoch + 1) % every == 0


def fresh_folder(parent: Path) -> Path:
    """Make a folder named after the time, with a number appended if the name is taken.

    Raises:
        UserError: the parent is a file.
    """
    name = time.strftime("%Y-%m-%d_%H-%M-%S")
    try:
        parent.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        problem = "is a file, and results are written into a folder of that name"
        raise UserError(str(parent), problem, fix="move it") from error
    number = 0
    while True:
        folder = parent / (f"{name}_{number}" if number else name)
        try:
            folder.mkdir()
        except FileExistsError:
            number += 1
        else:
            return folder
