"""Warn when the first iteration has no reward signal, and say what to do about it."""

from __future__ import annotations

import logging
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from gspo_lightning.loop.experience.sources import has_environment
from gspo_lightning.training.callbacks.folder import gspo_module
from gspo_lightning.training.module import GSPOModule

log = logging.getLogger(__name__)


class NoSignal(Callback):
    """Warns once, after the first update, if no group of the first iteration had two different rewards.

    There is no warning with a teacher, if a held-out answer was correct, or, without an evaluation, if the mean reward
    is above 0.
    """

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Warn after the first update of the run, on the first rank."""
        module = gspo_module(pl_module)
        loader = module.data.loader
        if trainer.is_global_zero and loader.iteration == 0 and loader.trained == 1 and _nothing(module):
            earned = module.last_update["reward/mean"]
            log.warning(
                "nothing to learn from yet: in every group of the first iteration all rewards are equal (their mean is "
                "%.3g), so no response is better than another%s; give the model a cold start "
                "(model.cold_start.demonstrations: demos.jsonl), easier data, or a reward for the format of an answer",
                earned, _one_turn(module),
            )  # fmt: skip


def _one_turn(module: GSPOModule) -> str:
    alone = has_environment(module.data.rollouts) and module.last_update.get("response/turns") == 1.0
    return ", and no conversation had a second turn: the policy has called no tool" if alone else ""


def _nothing(module: GSPOModule) -> bool:
    update = module.last_update
    if module.teacher is not None:
        return False  # a teacher gives a signal at every token
    if update.get("reward/dead_groups", 0.0) < 1.0 or "reward/mean" not in update:
        return False
    first = module.evaluator.history[0][1] if module.evaluator.history else {}
    return first.get("val/accuracy", max(update["reward/mean"], 0.0)) == 0.0
