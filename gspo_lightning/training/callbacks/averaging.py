"""Adapt Lightning's callbacks: averages of the trained weights only, checks when their metric is new."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint, WeightAveraging

from gspo_lightning.core.errors import UserError
from gspo_lightning.policy.averaging import Average
from gspo_lightning.policy.strategies.sharding import is_sharded
from gspo_lightning.training.callbacks.folder import gspo_module

log = logging.getLogger(__name__)


class AveragedWeights(Callback):
    """Lightning's ``WeightAveraging`` and ``EMAWeightAveraging`` (or your own subclass), adapted to this package.

    Lightning's copy the whole module, with its trainer, its data and its old policy, and change its weights for an
    evaluation. Here only the trained weights are averaged, an evaluation gets a separate policy with them, and training
    never sees them.

    Args:
        chosen: decides when to average (``should_update``), on which device (``device``) and how (``avg_fn``).
    """

    def __init__(self, chosen: WeightAveraging) -> None:
        self.chosen = chosen
        self._step = 0
        self._iteration = -1

    def state_dict(self) -> dict[str, Any]:
        """Return the step of the last update; the average itself is in the module's part of a checkpoint."""
        return {"latest_update_step": self._step, "latest_update_epoch": self._iteration}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state of :meth:`state_dict`."""
        self._step = state_dict["latest_update_step"]
        self._iteration = state_dict["latest_update_epoch"]

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start from the current weights, or continue the average of the checkpoint.

        Raises:
            UserError: the weights are sharded.
        """
        module = gspo_module(pl_module)
        if is_sharded(module.policy):
            raise UserError(
                "trainer.callbacks",
                f"{type(self.chosen).__name__} needs whole weights, but this strategy spreads them over the ranks",
                fix="use trainer.strategy: ddp, or leave it out",
            )
        module.average = Average(module.policy, self.chosen._device, **self.chosen._kwargs)
        if module.restored is not None:
            module.average.load(module.restored)
        elif trainer.ckpt_path is not None:
            log.info("the checkpoint contains no average of weights: averaging begins with its weights")

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Update the average after an update, and after an iteration before it is evaluated and saved."""
        module = gspo_module(pl_module)
        average = module.average
        assert average is not None, "on_fit_start comes first"
        if module.critic_only:
            return  # the policy is still at its initial weights
        step = trainer.global_step
        if step > self._step and self.chosen.should_update(step_idx=step - 1):
            average.update()
            self._step = step
        iteration = trainer.current_epoch
        iteration_ends = module.data.loader.spent and iteration > self._iteration
        if iteration_ends and self.chosen.should_update(epoch_idx=iteration):
            average.update()
            self._iteration = iteration


def adapted(callbacks: Sequence[Callback], *, evaluates: bool) -> list[Callback]:
    """Return the callbacks that a user chose, adapted, in order.

    ``WeightAveraging`` averages the trained weights. ``EarlyStopping`` and ``ModelCheckpoint`` check when their metric
    is new: after an evaluation for ``val/`` metrics, after an iteration for all others. Lightning's own choice follows
    ``check_val_every_n_epoch``, and may be never.

    Args:
        callbacks: in the form that Lightning takes.
        evaluates: True if there are held-out prompts.

    Raises:
        UserError: there are two averages.
    """
    averages = [type(c).__name__ for c in callbacks if isinstance(c, WeightAveraging)]
    if len(averages) > 1:
        raise UserError("trainer.callbacks", f"{' and '.join(averages)}: a run keeps one average of its weights")
    for callback in callbacks:
        of_updates = not str(getattr(callback, "monitor", None)).startswith("val/")
        if isinstance(callback, EarlyStopping) and callback._check_on_train_epoch_end is None:
            callback._check_on_train_epoch_end = of_updates
        elif isinstance(callback, ModelCheckpoint) and callback._save_on_train_epoch_end is None and of_updates:
            # without a metric, a run that evaluates leaves the choice to Lightning
            callback._save_on_train_epoch_end = True if callback.monitor is not None or not evaluates else None
    return [AveragedWeights(c) if isinstance(c, WeightAveraging) else c for c in callbacks]
