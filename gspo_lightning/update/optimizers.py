"""Adam steps by one kernel where PyTorch has one: no temporary copies of all weights, and half the time on a CPU."""

from __future__ import annotations

import torch

__all__ = ["FUSED", "fuse"]

FUSED = (torch.optim.Adam, torch.optim.AdamW)
"""Exactly these classes, not those that derive from them."""


def fuse(optimizer: torch.optim.Optimizer) -> None:
    """Take the fused kernel for Adam and AdamW on CPUs and CUDA, unless ``fused`` or ``foreach`` was chosen."""
    if type(optimizer) not in FUSED:
        return
    for group in optimizer.param_groups:
        known = all(p.device.type in ("cpu", "cuda") and p.is_floating_point() for p in group["params"])
        if known and group["fused"] is None and group["foreach"] is None and not group["differentiable"]:
            group["fused"] = True
