"""Fused Adam, if PyTorch has the kernel: no temporary copies of all weights, and half the time on a CPU."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from gspo_lightning.distributed import local

__all__ = ["FUSED", "SHARE", "fuse", "still_share", "warn_if_weights_stand_still"]

log = logging.getLogger(__name__)

FUSED = (torch.optim.Adam, torch.optim.AdamW)
"""Exactly these classes, not their subclasses."""


def fuse(optimizer: torch.optim.Optimizer) -> None:
    """Use the fused kernel for Adam and AdamW on CPUs and CUDA, unless ``fused`` or ``foreach`` was set."""
    if type(optimizer) not in FUSED:
        return
    for group in optimizer.param_groups:
        known = all(p.device.type in ("cpu", "cuda") and p.is_floating_point() for p in group["params"])
        if known and group["fused"] is None and group["foreach"] is None and not group["differentiable"]:
            group["fused"] = True


SHARE = 0.5
"""Share of the weights that a step must be able to move; below it there is a warning."""


@torch.no_grad()
def still_share(parameters: Sequence[Tensor], lr: float) -> float:
    """Return the share of bfloat16 weights that an Adam step of size ``lr`` leaves unchanged: half a spacing is larger.

    A bfloat16 number has 8 significant bits: around w the spacing is 2^(floor(log2 |w|) - 7).
    """
    still = total = 0
    for parameter in parameters:
        if parameter.dtype == torch.bfloat16:
            exponent = torch.frexp(parameter.detach().float())[1] - 1  # floor(log2 |w|)
            still += int((torch.exp2(exponent - 8.0) > lr).logical_and(parameter != 0).sum())
            total += parameter.numel()
    return still / total if total else 0.0


def warn_if_weights_stand_still(policy: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Warn if weights are bfloat16 and an Adam step, about the learning rate, is below their resolution.

    May be called before or after the policy is sharded: each rank checks its own weights.
    """
    if "adam" not in type(optimizer).__name__.lower():
        return  # other optimizers' learning rate is no step size
    lr = max(float(group["lr"]) for group in optimizer.param_groups)
    share = still_share([local(p) for p in policy.parameters() if p.requires_grad], lr)
    if share > SHARE:
        log.warning(
            "model.dtype bfloat16 with a learning rate of %g: a step of that size is rounded away in %.0f%% of the "
            "weights (update/changed shows it); use model.dtype: float32 with trainer.precision: bf16-mixed",
            lr,
            100 * share,
        )
