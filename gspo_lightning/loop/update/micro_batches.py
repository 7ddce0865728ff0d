"""Micro-batches of a mini-batch: forward and backward of each, with the gradient of one batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gspo_lightning.core.distributed import all_sum, largest, rank_and_world
from gspo_lightning.core.types import MicroBatch
from gspo_lightning.loop.metrics.sums import MetricSums
from gspo_lightning.loop.update.loss import LossTerms, micro_batch_loss, mini_batch_count
from gspo_lightning.loop.update.loss_scale import no_scale
from gspo_lightning.loop.update.router_loss import load_balance
from gspo_lightning.policy.packing.batches import filler
from gspo_lightning.policy.parallel.context_parallel import ContextGroup


def all_but_last_backward(
    parts: Sequence[MicroBatch],
    terms: LossTerms,
    sums: MetricSums,
    *,
    on_policy: bool,
    without_sync: Callable[[], AbstractContextManager[Any]] = nullcontext,
    scale: Callable[[Tensor], Tensor] = no_scale,
) -> Tensor:
    """Run forward and backward of every micro-batch but the last, and return the last loss for the caller's backward.

    Gradients do not depend on how the mini-batch was split or on how many ranks hold it: every micro-batch is divided
    by the denominator of the whole mini-batch over all ranks. DDP and FSDP average over ranks, so each is scaled to a
    sum.

    Args:
        parts: this rank's micro-batches, on the policy's device; gradients are clear.
        terms: terms of the loss.
        sums: measurements are added here.
        on_policy: no update has been made since the snapshot of the old policy.
        without_sync: entered around each backward whose gradients stay on this rank until the last one's are reduced.
        scale: scales losses before backward (float16); the caller applies it to the last loss.
    """
    device = parts[0].input_ids.device
    world = rank_and_world()[1]
    parts = in_number(parts, device, terms.policy.context)
    denominator = all_sum(mini_batch_count(terms.objective, parts))
    balance = load_balance(terms.router_aux_loss_coef, terms.policy, parts, terms.temperature)

    def loss(part: MicroBatch) -> Tensor:
        return world * micro_batch_loss(
            part, terms, denominator=denominator, sums=sums, on_policy=on_policy, balance=balance
        )

    for part in parts[:-1]:
        with without_sync():
            scale(loss(part)).backward()
    last = parts[-1]
    if last.no_gradient is not None and all(last.no_gradient):  # every weight gets a gradient, be it 0
        last = replace(last, no_gradient=None)
    return loss(last)


def in_number(
    parts: Sequence[MicroBatch], device: torch.device, context: ContextGroup | None = None
) -> list[MicroBatch]:
    """Pad to the same number of micro-batches on every rank; the added ones have weight 0.

    Args:
        parts: this rank's.
        device: of the collective.
        context: ranks that take turns with this one; None: they compute at the same time.
    """
    padding = filler(parts[-1])
    if context is not None:
        turns = context.turns(len(parts), device)
        return [padding if index is None else parts[index] for index in turns]
    missing = largest(len(parts), device) - len(parts)
    return [*parts, *[padding] * missing]


def backward_here(loss: Tensor, scale: Callable[[Tensor], Tensor] = no_scale) -> Tensor:
    """Run backward now, where running out of memory can be handled; return a loss whose backward does nothing."""
    with torch.autocast(loss.device.type, enabled=False):
        scale(loss).backward()
    return loss.detach().requires_grad_()
