"""One progress bar for the whole run: reward, held-out accuracy (or mean reward), clip fraction, response length."""

from __future__ import annotations

import sys
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar
from tqdm.auto import tqdm

from gspo_lightning.callbacks.learner import learner
from gspo_lightning.training.module import GSPOModule

__all__ = ["RunProgress"]


class RunProgress(ProgressBar):
    """Counts updates. The loss is left out on purpose: on-policy it is 0 while the gradient is not."""

    def __init__(self) -> None:
        super().__init__()
        self._bar: Any = None
        self._enabled = True

    def disable(self) -> None:
        """Lightning silences every rank but the first."""
        self._enabled = False

    def enable(self) -> None:
        """The inverse."""
        self._enabled = True

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Open the bar at the position of a resumed run."""
        module = learner(pl_module)
        updates = module.data.settings.updates_per_iteration
        whole = module.iterations
        total = None if whole is None else whole * updates
        if total is not None and trainer.max_steps >= 0:
            total = min(total, trainer.max_steps)
        interactive = sys.stderr.isatty()
        self._bar = tqdm(
            total=total, initial=trainer.global_step, desc=type(module.objective).__name__, unit="update",
            disable=not self._enabled, dynamic_ncols=True, mininterval=0.2 if interactive else 5.0, leave=True,
        )  # fmt: skip

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """One more update."""
        if self._bar is None:
            return
        self._bar.update(trainer.global_step - self._bar.n)
        self._bar.set_postfix_str(describe(learner(pl_module)), refresh=False)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Show a new held-out result at once."""
        if self._bar is not None and not trainer.sanity_checking:
            self._bar.set_postfix_str(describe(learner(pl_module)))

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Close the bar."""
        self._close()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Close the bar before anything is printed about what went wrong."""
        self._close()

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def describe(module: GSPOModule) -> str:
    """``reward 0.91, held-out 0.87, clipped 41%, length 19.8`` from the latest numbers."""
    update, evaluation = module.last_update, module.evaluator.last
    parts = [f"reward {update['reward/mean']:.2f}"] if "reward/mean" in update else []
    if evaluation and module.shown_by == "accuracy":
        parts.append(f"held-out {evaluation['val/accuracy']:.2f}")
    elif evaluation:
        parts.append(f"held-out reward {evaluation['val/reward']:.2f}")
    if "clip/tokens" in update:
        parts.append(f"clipped {100 * update['clip/tokens']:.0f}%")
    if "response/length" in update:
        parts.append(f"length {update['response/length']:.1f}")
    return ", ".join(parts)
