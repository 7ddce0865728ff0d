"""Progress bar of a run: reward, held-out accuracy (or mean reward), clip fraction, response length."""

from __future__ import annotations

import sys
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar
from tqdm.auto import tqdm

from gspo_lightning.training.callbacks.folder import gspo_module
from gspo_lightning.training.module import GSPOModule


class UpdateBar(ProgressBar):
    """Progress bar of updates, shown on the first rank only; a subclass opens it and sets its text."""

    def __init__(self) -> None:
        super().__init__()
        self._bar: Any = None
        self._enabled = True

    def disable(self) -> None:
        """Hide the bar; Lightning calls this on every rank but the first."""
        self._enabled = False

    def enable(self) -> None:
        """Show the bar again."""
        self._enabled = True

    def open(self, trainer: Trainer, total: int | None, what: str) -> None:
        """Show the bar, at the position of a resumed run."""
        self._bar = tqdm(
            total=total, initial=trainer.global_step, desc=what, unit="update", disable=not self._enabled,
            dynamic_ncols=True, mininterval=0.2 if sys.stderr.isatty() else 5.0,
        )  # fmt: skip

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Close the bar."""
        self._close()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Close the bar before the error is printed."""
        self._close()

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


class RunProgress(UpdateBar):
    """Progress bar that counts updates.

    The loss is left out on purpose: on-policy it is 0 while the gradient is not.
    """

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Open the bar at the position of a resumed run."""
        module = gspo_module(pl_module)
        updates = module.data.settings.updates_per_iteration
        total = None if module.iterations is None else module.iterations * updates
        if total is not None and trainer.max_steps >= 0:
            total = min(total, trainer.max_steps)
        self.open(trainer, total, type(module.objective).__name__)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Advance the bar by one optimizer step."""
        if self._bar is None:
            return
        self._bar.update(trainer.global_step - self._bar.n)
        self._bar.set_postfix_str(describe(gspo_module(pl_module)), refresh=False)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Show the new held-out result at once."""
        if self._bar is not None and not trainer.sanity_checking:
            self._bar.set_postfix_str(describe(gspo_module(pl_module)))


def describe(module: GSPOModule) -> str:
    """Return the latest numbers as ``reward 0.91, held-out 0.87, clipped 41%, length 19.8``."""
    update = module.last_update
    evaluation = module.evaluator.last
    parts = []
    if "reward/mean" in update:
        parts.append(f"reward {update['reward/mean']:.2f}")
    if evaluation and module.shown_by == "accuracy":
        parts.append(f"held-out {evaluation['val/accuracy']:.2f}")
    elif evaluation:
        parts.append(f"held-out reward {evaluation['val/reward']:.2f}")
    if "clip/tokens" in update:
        parts.append(f"clipped {100 * update['clip/tokens']:.0f}%")
    if "response/length" in update:
        parts.append(f"length {update['response/length']:.1f}")
    return ", ".join(parts)
