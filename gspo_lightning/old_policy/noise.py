"""What a precision can bear: checks before the first rollout, and the noise of ratios that are 1."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from gspo_lightning.distributed import local
from gspo_lightning.errors import UserError
from gspo_lightning.objectives import Objective
from gspo_lightning.policy.policy import Policy
from gspo_lightning.types import MicroBatch

__all__ = ["band", "check_device", "check_ratio_noise", "ratio_noise", "still_share", "warn_if_weights_stand_still"]

log = logging.getLogger(__name__)

SHARE = 0.5
"""Share of the weights that a step must be able to move; below it there is a warning."""


def check_device(precision: str, dtype: str, device: torch.device) -> None:
    """Refuse bfloat16 on a GPU without it.

    Raises:
        UserError: the hardware emulates it or cannot do it at all.
    """
    if "bf16" not in precision and dtype != "bfloat16":
        return
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 0):
        raise UserError(
            "trainer.precision",
            f"is {precision!r}, model.dtype {dtype!r}, but {torch.cuda.get_device_name(device)} has no bfloat16",
            fix="use 32-true with model.dtype: float32, or a GPU of the Ampere generation or later",
        )


def band(objective: Objective) -> float | None:
    """The smaller side of an objective's clip range; None where it has none."""
    sides = (getattr(objective, name, None) for name in ("clip_low", "clip_high"))
    found = [float(side) for side in sides if side is not None and side > 0]
    return min(found) if found else None


@torch.no_grad()
def ratio_noise(
    policy: Policy,
    batch: MicroBatch,
    other: Callable[[], Tensor] | None = None,
    context: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> float:
    """Mean over sequences of |mean log-ratio| between two evaluations of one policy; nats.

    Args:
        policy: both times the same weights.
        batch: N rows on its device.
        other: the second evaluation, [N, T]; the first one again by default.
        context: of the forward passes (autocast).
    """
    with context():
        first = policy(batch)[0].double()
        second = (other() if other is not None else policy(batch)[0]).double()
    gap = torch.where(batch.response_mask, first - second, 0.0).sum(-1) / batch.response_mask.sum(-1).clamp(min=1)
    return float(gap.abs().mean())


def check_ratio_noise(
    policy: Policy, batch: MicroBatch, objective: Objective, context: Callable[[], AbstractContextManager[Any]]
) -> None:
    """The same weights give ratios of 1: old and new log-probabilities may differ by a tenth of the clip range at most.

    Raises:
        UserError: they differ by more, so that clipping would act on noise.
    """
    limit, noise = band(objective), ratio_noise(policy, batch, context=context)
    if limit is not None and not noise <= 0.1 * limit:
        raise UserError(
            "trainer.precision",
            f"the same weights give log-probabilities that differ by {noise:.1e} nats on average over a sequence, and "
            f"{type(objective).__name__} clips at {limit:g}: it would clip noise",
            fix="use 32-true, a deterministic attn_implementation, or an objective with a wider clip range",
        )


@torch.no_grad()
def still_share(parameters: Sequence[Tensor], lr: float) -> float:
    """Share of bfloat16 weights that an Adam step of size ``lr`` leaves as they are: half a spacing is larger.

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
    """Say so where weights are bfloat16 and a step of Adam, about the learning rate, is below what they resolve.

    Called before the policy is sharded or after it: each rank looks at what it holds.
    """
    if "adam" not in type(optimizer).__name__.lower():
        return  # the learning rate of others is no step size
    lr = max(float(group["lr"]) for group in optimizer.param_groups)
    share = still_share([local(p) for p in policy.parameters() if p.requires_grad], lr)
    if share > SHARE:
        log.warning(
            "model.dtype bfloat16 with a learning rate of %g: a step of that size is rounded away in %.0f%% of the "
            "weights (update/changed shows it); use model.dtype: float32 with trainer.precision: bf16-mixed",
            lr,
            100 * share,
        )
