"""Learning rate schedules for Lightning; one that watches a metric steps at the end of the iteration, not after it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from lightning.pytorch.utilities.types import LRSchedulerConfig
from torch.optim.lr_scheduler import ReduceLROnPlateau

from gspo_lightning.core.errors import UserError

_NEVER = 1 << 62
"""Never: Lightning would step after the iteration's checkpoint is written, and a resume would miss the step."""


def schedule(scheduler: Any) -> dict[str, Any]:
    """Return Lightning's settings of a schedule: one step per update, or one per value of the metric that it watches.

    Raises:
        UserError: it watches a metric without naming it.
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
    """Return the present learning rate as a share of the optimizer's initial one; 1 if that was 0.

    >>> optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.5)
    >>> optimizer.param_groups[0]["lr"] = 0.25
    >>> lr_factor(optimizer)
    0.5
    """
    group = optimizer.param_groups[0]
    initial_rate = float(optimizer.defaults.get("lr", group.get("initial_lr", group["lr"])))
    return float(group["lr"]) / initial_rate if initial_rate else 1.0


def step_plateaus(
    configs: Iterable[LRSchedulerConfig], values: Mapping[str, float], step: Callable[[Any, float], None]
) -> None:
    """Step every schedule whose metric is among ``values``, at the end of an iteration or an evaluation.

    Args:
        configs: Lightning's, of all schedules.
        values: values of metrics, by tag.
        step: Lightning's hook, called with a schedule and the value of its metric.
    """
    for config in configs:
        if config.reduce_on_plateau and config.monitor in values:
            step(config.scheduler, values[config.monitor])
