"""What a precision can bear: checks before the first rollout, and the noise of ratios that are 1."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from gspo_lightning.errors import UserError
from gspo_lightning.objectives import Objective
from gspo_lightning.policy.policy import Policy
from gspo_lightning.types import MicroBatch

__all__ = ["band", "check_ratio_noise", "ratio_noise"]

log = logging.getLogger(__name__)


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
