"""Clipping of gradients that are sharded over ranks; Lightning clips plain ones."""

from __future__ import annotations

from collections.abc import Iterable

from lightning.pytorch.utilities import GradClipAlgorithmType
from torch import nn

from gspo_lightning.strategies.sharding import clip_norm, clip_values


def clip_gradients(parameters: Iterable[nn.Parameter], norm: float, limit: float, algorithm: str | None) -> None:
    """Clip gradients in place, every rank its shards.

    Args:
        parameters: with gradients.
        norm: norm of all gradients over all ranks.
        limit: limit of that norm, or with ``value`` of each element's size.
        algorithm: Lightning's name; None: ``norm``.
    """
    if algorithm == GradClipAlgorithmType.VALUE:  # a str enum: str() is not its value
        clip_values(parameters, limit)
    else:
        clip_norm(parameters, norm, limit)
