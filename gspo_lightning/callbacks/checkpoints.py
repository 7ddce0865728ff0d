"""Checkpoints: written beside their place, synced and swapped in; Ctrl-C leaves one behind."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.io import TorchCheckpointIO
from lightning.pytorch.utilities import rank_zero_only
from rich.console import Console

from gspo_lightning.callbacks.folder import run_folder
from gspo_lightning.distributed import rank_and_world

__all__ = ["AtomicCheckpointIO", "Interrupts", "LastCheckpoint"]


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes a checkpoint beside its target, syncs it and swaps it in: a kill at any moment leaves the old one whole.

    Lightning stages in the temp directory and moves; across file systems that is a copy, and a kill in the middle of
    it destroys what was there.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None) -> None:
        """See the base class; ``storage_options`` is refused as there."""
        if storage_options is not None:
            raise TypeError("AtomicCheckpointIO takes no storage_options")
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        unfinished = target.with_name(f".{target.name}.unfinished")
        with open(unfinished, "wb") as file:
            torch.save(checkpoint, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, target)


class LastCheckpoint(ModelCheckpoint):
    """Keeps ``checkpoints/last.ckpt`` in the run folder, written every so many iterations.

    Args:
        every_n_iterations: iterations between two checkpoints; the last iteration always writes one.
    """

    def __init__(self, every_n_iterations: int = 1) -> None:
        super().__init__(filename="last", save_top_k=1, enable_version_counter=False, every_n_train_steps=1)
        self.every_n_iterations = every_n_iterations

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Count in iterations, now that the data module says how many updates one has."""
        if stage == "fit":
            self._every_n_train_steps = pl_module.data.updates_per_iteration * self.every_n_iterations
        self.dirpath = str(run_folder(trainer) / "checkpoints")
        super().setup(trainer, pl_module, stage)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The last iteration always leaves a checkpoint."""
        if trainer.global_step > self._last_global_step_saved:
            self._save_none_monitor_checkpoint(trainer, self._monitor_candidates(trainer))


class Interrupts(Callback):
    """Ctrl-C stops between two updates (never inside one), leaves a checkpoint and says how to go on."""

    def __init__(self) -> None:
        self._pending = False
        self._previous: Any = None

    def on_train_batch_start(self, trainer: Trainer, *_: Any) -> None:
        """Hold interrupts back: half an optimizer step must not be saved."""
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGINT, self._hold)

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        """Let an interrupt through that came during the update."""
        self._release()
        if self._pending:
            self._pending = False
            raise KeyboardInterrupt

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Save on an interrupt; other exceptions leave the last regular checkpoint as it is."""
        self._release()
        if not isinstance(exception, KeyboardInterrupt):
            return
        if trainer.state.fn != "fit" or trainer.global_step == 0:
            _say("Interrupted before the first update: nothing was trained, nothing was saved.")
            return
        path = Path(trainer.log_dir or trainer.default_root_dir) / "checkpoints" / "last.ckpt"
        if rank_and_world()[1] == 1:  # ranks are interrupted at different points: only regular checkpoints are whole
            trainer.save_checkpoint(path)
        _say(
            f"Interrupted after {trainer.global_step} updates. Saved: {path}\n"
            f"Go on with: gspo fit --config {path.parent.parent / 'config.yaml'} --ckpt_path {path}"
        )

    def _hold(self, signum: int, frame: FrameType | None) -> None:
        self._pending = True
        _say("Stopping after this update ...")

    def _release(self) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)
            self._previous = None


@rank_zero_only
def _say(text: str) -> None:
    Console(stderr=True).print(text, soft_wrap=True, highlight=False)
