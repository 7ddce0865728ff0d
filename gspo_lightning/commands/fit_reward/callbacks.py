"""Callbacks of reward-model training: checkpoints, a progress bar, and the ones in the config."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, Checkpoint, ProgressBar
from lightning.pytorch.utilities import rank_zero_only

from gspo_lightning.commands.fit.callbacks import listed
from gspo_lightning.core.errors import UserError
from gspo_lightning.core.escape import say
from gspo_lightning.core.temp_files import sweep
from gspo_lightning.resume import is_held, manifests
from gspo_lightning.training.callbacks.checkpoints import link_last
from gspo_lightning.training.callbacks.progress import UpdateBar
from gspo_lightning.training.callbacks.ranks import WatchRanks

_KEPT = 2
"""Newest checkpoints that are kept."""


class RunCheckpoint(Checkpoint):
    """Checkpointing that keeps the newest two in ``checkpoints/`` of the run folder; ``last.ckpt`` links the newest.

    Args:
        every_n_steps: optimizer steps between two checkpoints; the end of an epoch always writes one, after its
            evaluation.
    """

    def __init__(self, every_n_steps: int = 200) -> None:
        super().__init__()
        if every_n_steps < 1:
            raise UserError("RunCheckpoint.every_n_steps", f"is {every_n_steps}; it must be at least 1")
        self.every_n_steps = every_n_steps
        self._folder = Path()
        self._saved = -1

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Find the run folder and remove unfinished files of a killed run."""
        run = Path(trainer.log_dir or trainer.default_root_dir)
        self._folder = run / "checkpoints"
        if trainer.is_global_zero:
            sweep(self._folder, alone=is_held(run))

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Record the current step as saved: a resumed run starts at a checkpoint."""
        self._saved = trainer.global_step

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        """Save every ``every_n_steps`` optimizer steps."""
        if trainer.global_step % self.every_n_steps == 0:
            self._save(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save when the epoch is complete."""
        if trainer.fit_loop.epoch_loop.batch_progress.is_last_batch:
            self._save(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save at the end of the run, which a limit may place within an epoch."""
        self._save(trainer)

    def _save(self, trainer: Trainer) -> None:
        if trainer.global_step in (0, self._saved):
            return
        self._saved = trainer.global_step
        path = self._folder / f"step-{trainer.global_step:08d}.ckpt"
        trainer.save_checkpoint(path, weights_only=False)
        if trainer.is_global_zero:
            link_last(path)
            existing = [checkpoint for checkpoint, _ in manifests(self._folder) if checkpoint.exists()]
            for old in existing[_KEPT:]:
                trainer.strategy.remove_checkpoint(old)


class RewardProgress(UpdateBar):
    """Progress bar over optimizer steps, with accuracy on the last step's pairs and on held-out pairs."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Open the bar at the position of a resumed run."""
        total = trainer.estimated_stepping_batches
        self.open(trainer, None if math.isinf(total) else int(total), "reward model")

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Advance the bar if the batch completed an optimizer step."""
        if self._bar is not None and trainer.global_step > self._bar.n:
            self._bar.update(trainer.global_step - self._bar.n)
            self._bar.set_postfix_str(describe(pl_module), refresh=False)


class SayHowToGoOn(Callback):
    """Print after Ctrl-C how to resume the run."""

    @rank_zero_only
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Print the checkpoint to resume from if the exception is Ctrl-C."""
        if isinstance(exception, KeyboardInterrupt):
            last = Path(trainer.log_dir or trainer.default_root_dir) / "checkpoints" / "last.ckpt"
            advice = f"Resume with: --ckpt_path {last}" if last.exists() else "No checkpoint was written yet."
            say(f"Interrupted after {trainer.global_step} updates. {advice}", file=sys.stderr)


def describe(module: Any) -> str:
    """Format the latest metrics: ``accuracy 0.71, held-out 0.69``."""
    parts = [f"accuracy {module.last_update['reward_model/accuracy']:.2f}"] if module.last_update else []
    if module.evaluations:
        parts.append(f"held-out {module.evaluations[-1][1].accuracy.value:.2f}")
    return ", ".join(parts)


def callbacks_of(chosen: Mapping[str, Any]) -> list[Callback]:
    """Return the user's callbacks, then the default ones whose class the user has not configured."""
    configured = listed(chosen.get("callbacks"))
    defaults: list[Callback] = [WatchRanks(), SayHowToGoOn()]
    has_bar = any(isinstance(callback, ProgressBar) for callback in configured)
    if chosen.get("enable_progress_bar") is not False and not has_bar:
        defaults.append(RewardProgress())
    if chosen.get("enable_checkpointing") is not False:
        defaults.append(RunCheckpoint())
    classes = {type(callback) for callback in configured}
    return [*configured, *(callback for callback in defaults if type(callback) not in classes)]
