"""A callback that saves a checkpoint wherever a callback of Lightning's can, and checks that nothing has moved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from gspo_lightning.core.distributed import local

MOMENTS = (
    "on_train_start", "on_train_epoch_start", "on_train_batch_start", "on_before_backward", "on_after_backward",
    "on_before_optimizer_step", "on_train_batch_end", "on_validation_start", "on_validation_end",
    "on_train_epoch_end", "on_train_end",
)  # fmt: skip


class SaveAnywhere(Callback):
    """Saves at every moment of a run.

    Args:
        moments: hooks in which it saves; None is all of them.
    """

    def __init__(self, moments: list[str] | None = None) -> None:
        self.count = 0
        for moment in moments or MOMENTS:
            setattr(self, moment, self._save)

    def _save(self, trainer: Trainer, module: LightningModule, *_: Any) -> None:
        if trainer.state.fn != "fit" or trainer.sanity_checking:
            return
        before = parts(trainer)
        path = Path(str(trainer.log_dir), "checkpoints", f"moment-{self.count:03d}.ckpt")
        trainer.save_checkpoint(path, weights_only=False)
        self.count += 1
        after = parts(trainer)
        moved = [name for name in before.keys() | after.keys() if not same(before.get(name), after.get(name))]
        assert not moved, f"saving number {self.count} has changed {sorted(moved)}"
        assert path.exists()


def parts(trainer: Trainer) -> dict[str, Any]:
    """Copies of what training goes on from: weights, gradients, settings and state of the optimizers."""
    state_by_name: dict[str, Any] = {}
    for optimizer in trainer.optimizers:
        for number, group in enumerate(optimizer.param_groups):
            state_by_name[f"group {number}"] = {key: value for key, value in group.items() if key != "params"}
            for place, parameter in enumerate(group["params"]):  # the shards, also while whole weights are in use
                state_by_name[f"weight {number} {place}"] = copied(parameter.detach())
                state_by_name[f"gradient {number} {place}"] = copied(parameter.grad)
                state = optimizer.state.get(parameter)
                state_by_name[f"state {number} {place}"] = state and {
                    key: copied(value) for key, value in state.items()
                }
    return state_by_name


def copied(value: Any) -> Any:
    return local(value).clone() if isinstance(value, torch.Tensor) else value


def same(a: Any, b: Any) -> bool:
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return torch.equal(a, b)
    return a is b or bool(a == b)
