"""Progress bar of a run: reward, held-out accuracy (or mean reward), clip fraction, response length."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import LightningModule, Trainer

from gspo_lightning.callbacks.bar import UpdateBar
from gspo_lightning.callbacks.learner import learner
from gspo_lightning.training.module import GSPOModule

__all__ = ["RunProgress"]


class RunProgress(UpdateBar):
    """Progress bar that counts updates.

    The loss is left out on purpose: on-policy it is 0 while the gradient is not.
    """

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Open the bar at the position of a resumed run."""
        module = learner(pl_module)
        updates = module.data.settings.updates_per_iteration
        whole = module.iterations
        total = None if whole is None else whole * updates
        if total is not None and trainer.max_steps >= 0:
            total = min(total, trainer.max_steps)
        self.open(trainer, total, type(module.objective).__name__)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Advance the bar by one optimizer step."""
        if self._bar is None:
            return
        self._bar.update(trainer.global_step - self._bar.n)
        self._bar.set_postfix_str(describe(learner(pl_module)), refresh=False)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Show the new held-out result at once."""
        if self._bar is not None and not trainer.sanity_checking:
            self._bar.set_postfix_str(describe(learner(pl_module)))


def describe(module: GSPOModule) -> str:
    """Return the latest numbers as ``reward 0.91, held-out 0.87, clipped 41%, length 19.8``."""
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
