"""Say where a processor has instructions for products of bfloat16, which float32 leaves unused."""

from __future__ import annotations

import logging

import torch
from lightning.pytorch.utilities import rank_zero_only

from gspo_lightning.policy.kernels.processor import bfloat16_instructions
from gspo_lightning.policy.load.threads import NARROW

log = logging.getLogger(__name__)


def bfloat16_line(width: int | None, device: torch.device, precision: str) -> str | None:
    """Return a sentence about products of bfloat16 on this processor for a run that has none; else None.

    Args:
        width: hidden size of the model; None if it is not known. Casts cost a narrow model more than products.
        device: compute device.
        precision: ``trainer.precision``.
    """
    if device.type != "cpu" or precision not in ("32", "32-true", "None") or (width is not None and width <= NARROW):
        return None
    if (name := bfloat16_instructions()) is None:
        return None
    return (
        f"this processor has {name}: products of bfloat16 may be faster (--config bf16); nothing changes by itself; "
        "docs/real_model.md#bfloat16 says what its rounding is beside GSPO's clip range"
    )


@rank_zero_only
def say_bfloat16(width: int | None, device: torch.device, precision: str) -> None:
    """Log :func:`bfloat16_line`."""
    if (line := bfloat16_line(width, device, precision)) is not None:
        log.info(line)
