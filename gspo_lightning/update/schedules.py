"""Learning rate schedules as Lightning wants them; one that watches a metric steps with the iteration, not after it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from lightning.pytorch.utilities.types import LRSchedulerConfig
from torch.optim.lr_scheduler import ReduceLROnPlateau

from gspo_lightning.errors import UserError

__all__ = ["lr_factor", "schedule", "step_plateaus"]

_NEVER = 1 << 62
"""Lightning would step after the checkpoint of the iteration is written, and a resume would miss the step."""


def schedule(scheduler: Any) -> dict[str, Any]:
    """Lightning's settings of a schedule: one step per update, or, where it watches a metric, when that is there.

    Raises:
        UserError: it watches a metric, but does not say which.
    """
    if not isinstance(scheduler, ReduceLROnPlateau):
        return {"scheduler": scheduler, "interval": "step"}
    monitor: str | None = getattr(scheduler, "monitor", None)
    if monitor is None:
        raise UserError(
            "model.lr_scheduler",
            "ReduceLROnPlateau does not say which metric it watches",
            fix="class_path: lightning.pytorch.cli.ReduceLROnPlateau, init_args: {monitor: reward/mean, mode: max}",
        )
    return {"scheduler": scheduler, "interval": "epoch", "frequency": _NEVER, "monitor": monitor}


def lr_factor(optimizer: torch.optim.Optimizer) -> float:
    """The learning rate now, as a share of the one that the optimizer was made with; 1 where that was 0.

    >>> optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.5)
    >>> optimizer.param_groups[0]["lr"] = 0.25
    >>> lr_factor(optimizer)
    0.5
    """
    group = optimizer.param_groups[0]
    made_with = float(optimizer.defaults.get("lr", group.get("initial_lr", group["lr"])))
    return float(group["lr"]) / made_with if made_with else 1.0


def step_plateaus(
    configs: Iterable[LRSchedulerConfig], values: Mapping[str, float], step: Callable[[Any, float], None]
) -> None:
    """One step of every schedule whose metric is among these: at the end of an iteration, or of an evaluation.

    Args:
        configs: Lightning's, of all schedules.
        values: of metrics, by tag.
        step: Lightning's hook, called with a schedule and the value of its metric.
    """
    for config in configs:
        if config.reduce_on_plateau and config.monitor in values:
            step(config.scheduler, values[config.monitor])
