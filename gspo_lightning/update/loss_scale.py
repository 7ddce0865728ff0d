"""The loss scale of float16: gradients below 6e-8 would be 0, so losses are multiplied, and gradients divided again.

The scale is that of Lightning's precision plugin. The losses of all micro-batches of an update are multiplied by it.
Where it was too large, gradients are infinite: the scaler leaves the update out and halves the scale. Why float16:
arXiv 2510.26788.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from lightning.pytorch import Trainer
from torch import Tensor

__all__ = ["SMALLEST", "Scale", "no_scale", "overflows", "scaler_of"]

SMALLEST = 1.0
"""A gradient that is infinite at this scale or below is no matter of the scale."""


class Scale:
    """Multiplies losses by the scale of ``scaler``; without one they stay."""

    def __init__(self, scaler: torch.amp.GradScaler | None) -> None:
        self.scaler = scaler

    def __call__(self, loss: Tensor) -> Tensor:
        """The scaled loss, for its backward."""
        if self.scaler is None:
            return loss
        scaled: Tensor = self.scaler.scale(loss)
        return scaled


no_scale = Scale(None)


def scaler_of(trainer: Trainer) -> torch.amp.GradScaler | None:
    """The one of the precision plugin, which has one with ``precision: 16-mixed``."""
    return getattr(trainer.precision_plugin, "scaler", None)


def overflows(scaler: torch.amp.GradScaler, suspects: Mapping[str, float]) -> bool:
    """Whether only the scale was too large for this update, which is then left out.

    Args:
        scaler: of the run; gradients are divided by its scale already.
        suspects: what may be not finite in an update, ``gradient norm`` among it.
    """
    others = (value for name, value in suspects.items() if name != "gradient norm")
    finite = all(math.isfinite(value) for value in others)
    return finite and not math.isfinite(suspects["gradient norm"]) and scaler.get_scale() > SMALLEST
