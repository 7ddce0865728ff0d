"""A precision plug-in with a loss scale but without rounding: its gradients can be compared exactly."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from lightning.pytorch.plugins import MixedPrecision


class ScaledFloat32(MixedPrecision):
    """``16-mixed`` with autocast left out; ``init_scale`` a power of two."""

    def __init__(self, init_scale: float) -> None:
        super().__init__("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=init_scale))

    @contextlib.contextmanager
    def forward_context(self) -> Iterator[None]:
        """Nothing is rounded."""
        yield
