"""Warn when the first iteration has no reward signal, and say what to do about it."""

from __future__ import annotations

import logging
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from gspo_lightning.loop.experience.sources import has_environment
from gspo_lightning.training.callbacks.folder import gspo_module
from gspo_lightning.training.module import GSPOModule

log = logging.getLogger(__name__)
MOST = 0.5
"""Share of cut responses from which on the limit is named before the prompts: a longer one may be all that it takes."""


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
                "%.3g), so no response is better than another%s%s; give the model a cold start "
                "(model.cold_start.demonstrations: demos.jsonl), easier data, or a reward for the format of an answer",
                earned, _cut(module), _one_turn(module),
            )  # fmt: skip


def _one_turn(module: GSPOModule) -> str:
    alone = has_environment(module.data.rollouts) and module.last_update.get("response/turns") == 1.0
    return ", and no conversation had a second turn: the policy has called no tool" if alone else ""


def _cut(module: GSPOModule) -> str:
    share = module.last_update.get("response/truncated", 0.0)
    limit = module.data.settings.max_response_tokens
    cut = f", and {share:.0%} of the responses were cut at data.max_response_tokens ({limit}): raise it first"
    return cut if share >= MOST else ""


def _nothing(module: GSPOModule) -> bool:
    update = module.last_update
    if module.teacher is not None:
        return False  # a teacher gives a signal at every token
    if update.get("reward/dead_groups", 0.0) < 1.0 or "reward/mean" not in update:
        return False
    first = module.evaluator.history[0][1] if module.evaluator.history else {}
    return first.get("val/accuracy", max(update["reward/mean"], 0.0)) == 0.0
