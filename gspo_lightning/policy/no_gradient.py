"""Rows without a gradient: they are computed without a graph, which saves their backward pass and activations.

Where a reward is right or wrong, half or more of the groups are often dead: all their advantages are 0, and so is their
gradient, unless another term of the loss (a KL, an entropy bonus) needs them. Their log-probabilities are still
computed, because metrics measure every row. No other row's gradient depends on this.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from gspo_lightning.core.types import MicroBatch
from gspo_lightning.policy.packing.batches import select_rows

Compute = Callable[[MicroBatch], tuple[Tensor, ...]]
"""Values [N, T] of the N rows of a micro-batch, several kinds of them, such as log-probabilities and entropies."""


def by_gradient(compute: Compute, part: MicroBatch) -> tuple[Tensor, ...]:
    """Return ``compute(part)``, with a graph only for the rows that are not marked.

    If a marked row has a gradient after all, it is computed again with a graph in the backward pass: slower, never
    wrong.
    """
    flags = part.no_gradient or ()
    without = [row for row, marked in enumerate(flags) if marked]
    graphed = [row for row, marked in enumerate(flags) if not marked]
    part = replace(part, no_gradient=None)
    if not graphed:
        return _without_graph(compute, part)
    pieces = compute(select_rows(part, graphed)), _without_graph(compute, select_rows(part, without))
    place = torch.tensor([*graphed, *without]).argsort().to(part.input_ids.device, non_blocking=True)
    width = part.response_mask.shape[1]
    return tuple(
        torch.cat([nn.functional.pad(values, (0, width - values.shape[1])) for values in kinds])[place]
        for kinds in zip(*pieces, strict=True)
    )


def _without_graph(compute: Compute, part: MicroBatch) -> tuple[Tensor, ...]:
    kind = part.input_ids.device.type
    autocast = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind), torch.is_autocast_cache_enabled()

    def again() -> tuple[Tensor, ...]:
        enabled, dtype, cached = autocast
        with torch.autocast(kind, dtype=dtype, enabled=enabled, cache_enabled=cached):
            return compute(part)

    anchor = torch.zeros((), requires_grad=True)  # otherwise autograd would not ask for a gradient
    values: tuple[Tensor, ...] = _WithoutGraph.apply(anchor, again)  # type: ignore[no-untyped-call]
    return values


class _WithoutGraph(torch.autograd.Function):
    """Values whose graph is made in the backward pass, and only if one of their gradients is not 0."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, compute: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        ctx.compute = compute
        ctx.set_materialize_grads(False)
        return compute()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[None, None]:
        given = [gradient is not None and bool(gradient.any()) for gradient in gradients]
        if any(given):
            with torch.enable_grad():
                values = ctx.compute()
            pairs = zip(values, gradients, given, strict=True)
            outputs, factors = zip(*((value, gradient) for value, gradient, is_given in pairs if is_given), strict=True)
            torch.autograd.backward(outputs, factors)
        return None, None
