"""Share of an update that products see under autocast: they read rounded copies of the weights that are trained.

A step of the learning rate is far below the last bit of a bfloat16 number. Of weights anywhere between two of these
numbers just so many cross the middle that the copies move by as much as the weights on average. Weights of a checkpoint
in bfloat16 are such numbers, so nothing crosses for a long time. Of weights in float16, and of those from files of few
bits, a tenth lie in the middle itself: the smallest update carries half of these over, however small it is.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor

log = logging.getLogger(__name__)

SAMPLE = 1 << 20
"""Weights that are looked at."""
SMALL = 1 << 10
"""Numbers of a weight below which it is not looked at: norms and biases."""
MUCH = 2.0
"""Share of an update above which it is said that products see more than it."""
LITTLE = 0.5
"""Share below which it is said that they see less."""
MOST = 1 << 14
"""Updates up to which it is computed how many show."""


def share_seen(weights: Tensor, dtype: torch.dtype, step: float) -> float:
    """Return how far copies of weights in a dtype move with steps of random signs, relative to the steps.

    Args:
        weights: [n], wider than ``dtype``.
        dtype: of the copies.
        step: size of each step.

    >>> at_ties, numbers = torch.full((1000,), 1 + 2.0**-8), torch.full((1000,), 1 + 2.0**-7)
    >>> round(share_seen(at_ties, torch.bfloat16, 2.0**-20) / 2**12, 1)  # half of them move by 2**-7
    1.0
    >>> share_seen(numbers, torch.bfloat16, 2.0**-20)
    0.0
    """
    signs = torch.ones(len(weights), device=weights.device)
    signs[1::2] = -1.0
    moved = (weights + step * signs).to(dtype).double() - weights.to(dtype).double()
    return float((moved * signs).mean()) / step


def sample(parameters: Iterable[Tensor]) -> Tensor:
    """Return about :data:`SAMPLE` trained float32 weights [n] of this process, evenly spaced, in an order of chance."""
    large = [getattr(p, "_local_tensor", p) for p in parameters if p.requires_grad and p.dtype == torch.float32]
    flat = [p.detach().flatten() for p in large if p.numel() >= SMALL]
    every = max(1, sum(map(len, flat)) // SAMPLE)
    weights = torch.cat([p[::every] for p in flat] or [torch.zeros(0)])
    order = torch.randperm(len(weights), generator=torch.Generator().manual_seed(0))
    return weights[order.to(weights.device)]


def rounding_line(parameters: Iterable[Tensor], dtype: torch.dtype, rate: float) -> str | None:
    """Return a sentence about the first update where copies of the weights move by another amount; else None.

    Args:
        parameters: of a policy.
        dtype: of its products.
        rate: learning rate of an optimizer whose first step is that large.
    """
    weights = sample(parameters)
    if not len(weights):
        return None
    share = share_seen(weights, dtype, rate)
    narrow = str(dtype).removeprefix("torch.")
    if share > MUCH:
        return (
            f"products in {narrow} see the first update {share:.0f} times as large as a learning rate of {rate:g} "
            f"makes it: many weights lie in the middle between two {narrow} numbers, as those of float16 checkpoints "
            "and GGUF files do; use trainer.precision: 32-true, or start from a checkpoint in bfloat16 or float32 "
            "(docs/real_model.md#bfloat16)"
        )
    if share >= LITTLE:
        return None
    updates = 1
    while updates < MOST and share_seen(weights, dtype, updates * rate) < LITTLE:
        updates *= 2
    return (
        f"products in {narrow} see {share:.0%} of the first update at a learning rate of {rate:g}, and half of what "
        f"about {updates} of them add up to: the weights are {narrow} numbers, and a copy moves when its weight has "
        "crossed the middle to the next one (docs/real_model.md#bfloat16)"
    )


def say_rounded_updates(parameters: Iterable[Tensor], dtype: torch.dtype | None, optimizers: Iterable[Any]) -> None:
    """Log :func:`rounding_line` for the first optimizer, if its steps have the size of the learning rate, as Adam's."""
    optimizer = next(iter(optimizers), None)
    if dtype is None or optimizer is None:
        return
    if "adam" not in type(getattr(optimizer, "optimizer", optimizer)).__name__.lower():
        return
    group = optimizer.param_groups[0]
    rate = float(group.get("initial_lr", group["lr"]))
    if rate > 0 and (line := rounding_line(parameters, dtype, rate)) is not None:
        rank_zero_only(log.warning)(line)
