"""Callbacks and functions that a user might bring along, for tests of Lightning's options."""

from __future__ import annotations

from typing import Any, ClassVar

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor


class Accumulates(Callback):
    """Adds gradients of two batches up from the second update on."""

    def on_train_batch_start(self, trainer: Trainer, *_: Any) -> None:
        """When one update is made."""
        trainer.accumulate_grad_batches = 1 + (trainer.global_step == 1)


class Watches(Callback):
    """Keeps the weights after every update of the newest run."""

    seen: ClassVar[list[dict[str, Tensor]]] = []

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """A run begins."""
        Watches.seen.clear()

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """One more update."""
        trained = ((f"policy.{n}", p) for n, p in pl_module.policy.named_parameters() if p.requires_grad)
        Watches.seen.append({name: p.detach().clone() for name, p in trained})


class Gradients(Callback):
    """Counts gradients that exist, by the moment of the newest run."""

    seen: ClassVar[dict[str, list[int]]] = {}

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """An update has been made."""
        self._count("update", pl_module)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The next rollouts are sampled."""
        self._count("rollouts", pl_module)

    def _count(self, moment: str, module: LightningModule) -> None:
        Gradients.seen.setdefault(moment, []).append(sum(p.grad is not None for p in module.policy.parameters()))


def rows(batch: Any) -> int:
    """Responses of a mini-batch, prompts of an evaluation."""
    return len(batch) if isinstance(batch, list) else sum(len(part.input_ids) for part in batch.micro_batches)
