"""Exact attention of packed rows over their shared prompt and over themselves, in values and gradients.

A response token sees its whole prompt and its own response up to itself. Both parts are computed without a mask and
without copying the prompt, and joined by their log-sum-exp. The backward pass gives each part the joined output and
log-sum-exp, which makes its gradient exact (Dao et al., FlashAttention, arXiv 2205.14135, Eq. of the backward pass;
Liu et al., Ring Attention, arXiv 2310.01889, joins blocks the same way).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gspo_lightning.policy.attention.kernels import Pass, Span

__all__ = ["PrefixPlan"]


class PrefixPlan:
    """Attention plan of M packed tokens on a CPU; see :class:`gspo_lightning.policy.attention.PackedLayout`.

    Segments cover all tokens, with responses last. Tokens of one of ``blocks`` see each other.
    """

    def __init__(
        self,
        segments: Sequence[tuple[int, int]],
        crossings: Sequence[Span],
        longest: int,
        blocks: Sequence[tuple[int, int]] = (),
    ) -> None:
        self.longest = longest
        own = Pass([(s, n, s, n) for s, n in segments], causal=True, blocks=blocks)
        self.passes = own, Pass(crossings, causal=False) if crossings else None

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """Attend with [M, H, d] over [M, K, d]; returns [M, H, d]."""
        out: Tensor = _SharedPrefix.apply(query, key, value, self.passes, scaling)  # type: ignore[no-untyped-call]
        return out


class _SharedPrefix(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, passes: tuple[Pass, Pass | None], scaling: float
    ) -> Tensor:
        own, cross = passes
        out, lse = own.forward(query, key, value, scaling)
        if cross is not None:
            _join(out[cross.first :], lse[cross.first :], *cross.forward(query, key, value, scaling))
        ctx.save_for_backward(query, key, value, out, lse)
        ctx.passes, ctx.scaling = passes, scaling
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, out, lse = ctx.saved_tensors
        own, cross = ctx.passes
        inputs = grads[0].contiguous(), query, key, value, out, lse, ctx.scaling
        d_query, d_key, d_value = own.backward(*inputs)
        if cross is not None:
            parts = cross.backward(*inputs)
            d_query[cross.first :] += parts[0]
            d_key.index_add_(0, cross.keys, parts[1])
            d_value.index_add_(0, cross.keys, parts[2])
        return d_query, d_key, d_value, None, None


def _join(out: Tensor, lse: Tensor, other: Tensor, other_lse: Tensor) -> None:
    """Join attention over further keys into ``out`` [m, H, d] and ``lse`` [m, H], in place."""
    joined = torch.logaddexp(lse, other_lse)
    share = torch.sub(other_lse, joined).exp_().unsqueeze(-1).to(out.dtype)
    out.lerp_(other, share)
    lse.copy_(joined)
