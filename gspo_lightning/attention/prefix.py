"""Attention of packed rows over their shared prompt and over themselves, exact in values and gradients.

A response token sees its whole prompt and its own response up to itself. Both parts are computed without a mask and
without copying the prompt, and joined by their log-sum-exp; the backward pass gives each part the joined output and
log-sum-exp, which makes its own gradient exact (Dao et al., FlashAttention, arXiv 2205.14135, Eq. of the backward pass;
Liu et al., Ring Attention, arXiv 2310.01889, joins blocks the same way).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gspo_lightning.attention.kernels import Kernel

__all__ = ["PrefixPlan"]


class PrefixPlan:
    """The attention of M packed tokens on a CPU; see :class:`gspo_lightning.attention.PackedLayout`."""

    def __init__(
        self, segments: Sequence[tuple[int, int]], crossings: Sequence[tuple[int, int, int, int]], longest: int
    ) -> None:
        self.longest = longest
        self.kernel = Kernel(segments, crossings)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """[M, H, d] over [M, K, d] to [M, H, d]."""
        out: Tensor = _SharedPrefix.apply(query, key, value, self.kernel, scaling)  # type: ignore[no-untyped-call]
        return out


class _SharedPrefix(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, kernel: Kernel, scaling: float) -> Tensor:
        out, lse = kernel.own(query, key, value, scaling)
        for crossing in kernel.crossings:
            _join(out, lse, crossing.queries, *kernel.cross(crossing, query, key, value, scaling))
        ctx.save_for_backward(query, key, value, out, lse)
        ctx.kernel, ctx.scaling = kernel, scaling
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, out, lse = ctx.saved_tensors
        kernel: Kernel = ctx.kernel
        gradient = grads[0].contiguous()
        d_query, d_key, d_value = kernel.own_backward(gradient, query, key, value, out, lse, ctx.scaling)
        for crossing in kernel.crossings:
            parts = kernel.cross_backward(crossing, gradient, query, key, value, out, lse, ctx.scaling)
            d_query[crossing.queries] += parts[0]
            d_key[crossing.keys] += parts[1]
            d_value[crossing.keys] += parts[2]
        return d_query, d_key, d_value, None, None


def _join(out: Tensor, lse: Tensor, place: slice, other: Tensor, other_lse: Tensor) -> None:
    """Join attention over further keys into ``out`` [M, H, d] and ``lse`` [M, H] at ``place``, in place."""
    mine = lse[place]
    joined = torch.logaddexp(mine, other_lse)
    share = (other_lse - joined).exp().unsqueeze(-1).to(out.dtype)
    out[place] = torch.lerp(out[place], other, share.expand_as(other))
    lse[place] = joined
