"""Loss scale of float16: gradients below 6e-8 would be 0, so losses are multiplied, and gradients divided again.

The scale is that of Lightning's precision plugin; it multiplies the losses of all micro-batches of an update. If it was
too large, gradients are infinite: the scaler leaves the update out and halves the scale. Why float16: arXiv 2510.26788.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from lightning.pytorch import Trainer
from torch import Tensor

SMALLEST = 1.0
"""A scale is not the cause of an infinite gradient at this value or below."""


class Scale:
    """Scaling of losses by the scale of ``scaler``; without one they stay unchanged."""

    def __init__(self, scaler: torch.amp.GradScaler | None) -> None:
        self.scaler = scaler

    def __call__(self, loss: Tensor) -> Tensor:
        """Return the scaled loss, for its backward."""
        if self.scaler is None:
            return loss
        scaled: Tensor = self.scaler.scale(loss)
        return scaled


no_scale = Scale(None)


def scaler_of(trainer: Trainer) -> torch.amp.GradScaler | None:
    """Return the scaler of the precision plugin, which has one with ``precision: 16-mixed``."""
    return getattr(trainer.precision_plugin, "scaler", None)


def overflows(scaler: torch.amp.GradScaler, suspects: Mapping[str, float]) -> bool:
    """True if only the scale was too large for this update, which is then left out.

    Args:
        scaler: scaler of the run; gradients are already divided by its scale.
        suspects: values of an update that may be non-finite, including ``gradient norm``.
    """
    others = (value for name, value in suspects.items() if name != "gradient norm")
    finite = all(math.isfinite(value) for value in others)
    return finite and not math.isfinite(suspects["gradient norm"]) and scaler.get_scale() > SMALLEST
