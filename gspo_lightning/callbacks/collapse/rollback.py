"""Roll back to a good checkpoint in the same process: weights are restored, counters are not.

The counters (updates, iterations, the x axis) keep their values, so the next rollout batch has other prompts and other
random draws. Randomness depends on counters only: turning them back would lead into the same collapse again.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer

from gspo_lightning.policy.averaging import holds_average, training_weights
from gspo_lightning.resume import damage, manifests, read_tensors
from gspo_lightning.training.module import GSPOModule

__all__ = ["good_checkpoint", "roll_back"]


def good_checkpoint(folder: Path, quiet: Collection[int], since: int) -> Path | None:
    """Return the newest intact checkpoint from before an update; None if there is none.

    Args:
        folder: the run's checkpoints.
        quiet: numbers of updates after which nothing was suspicious.
        since: the first suspicious update.
    """
    known = [(m.step, path) for path, m in manifests(folder) if m.step in quiet and m.step < since]
    return next((path for _, path in sorted(known, reverse=True) if damage(path) is None), None)


def roll_back(trainer: Trainer, module: GSPOModule, path: Path, lr_factor: float) -> dict[str, Any]:
    """Restore policy, snapshot, optimizer, critic and gradient-norm history from a checkpoint, and return it.

    Every rank reads the file. Learning rates become the current ones times ``lr_factor``; a schedule continues from
    there.
    """
    checkpoint: dict[str, Any] = read_tensors(path, "checkpoint")
    weights = training_weights(checkpoint)
    for name, part in (("policy.", module.policy), ("old_policy.", module.old_policy)):
        state = {k.removeprefix(name): v for k, v in weights.items() if k.startswith(name)}
        if state:
            part.load_state_dict(state)
    if module.average is not None and holds_average(checkpoint):
        module.average.load(checkpoint)
    for optimizer, state in zip(trainer.optimizers, checkpoint["optimizer_states"], strict=True):
        rates = [(group["lr"], group.get("initial_lr")) for group in optimizer.param_groups]
        optimizer.load_state_dict(state)
        for group, (rate, initial) in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * lr_factor
            if initial is not None:
                group["initial_lr"] = initial * lr_factor
    for config in trainer.lr_scheduler_configs:
        if hasattr(config.scheduler, "base_lrs"):
            config.scheduler.base_lrs = [rate * lr_factor for rate in config.scheduler.base_lrs]
    if module.critic is not None and "gspo_critic" in checkpoint:
        module.critic.load_state_dict(checkpoint["gspo_critic"])
    module.meter.load_state_dict(checkpoint.get("gspo_meter", {}))
    return checkpoint
