"""Choose the attention kernel of a device, and check it against the definition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gspo_lightning.policy.attention.flex import FlexPlan, has_flex
from gspo_lightning.policy.attention.interface import Plan, UnsupportedAttentionError
from gspo_lightning.policy.attention.kernels import Pass, Span

Segments = Sequence[tuple[int, int]]
Crossings = Sequence[tuple[int, int, int, int]]

_PROBES: list[tuple[Segments, Crossings, int]] = [
    ([(0, 150), (150, 3), (153, 90), (243, 1), (244, 40)], [(153, 91, 0, 150), (244, 40, 150, 3)], 0),
    ([(0, 140), (140, 13), (153, 90), (243, 1), (244, 40)], [(243, 1, 140, 13), (244, 40, 153, 90)], 140),
]
"""Segments, crossings and prefix of random tokens: two prompts with responses, alone and behind a prefix."""
_PICTURES: Segments = [(100, 40), (155, 9)]
"""Probe tokens that see each other; the first span lies in two blocks of the CUDA kernel."""
_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-3}
"""Largest difference, relative to the largest element, that counts as rounding; 0.05 in half precision."""


def attention_plan(
    segments: Segments,
    crossings: Crossings,
    longest: int,
    device: torch.device,
    blocks: Segments = (),
    prefix: int = 0,
) -> Plan:
    """Return the attention plan of packed tokens; see :class:`gspo_lightning.policy.attention.PackedLayout`.

    Args:
        segments: (start, length) of prompts and responses.
        crossings: (start and length of the responses to a prompt, start and length of the prompt).
        longest: tokens of the longest row.
        device: of the tensors that attend.
        blocks: (start, length) of tokens that see each other, each inside a segment.
        prefix: tokens of the first segment, if all others see it; 0 if not.

    Raises:
        UnsupportedAttentionError: no kernel for this device.
    """
    if has_flex(device):
        return FlexPlan(segments, crossings, longest, device, blocks, prefix)
    if device.type == "cpu":
        return PrefixPlan(segments, crossings, longest, blocks, prefix)
    why = "no Triton to compile one with" if device.type == "cuda" else "no kernel for it yet"
    raise UnsupportedAttentionError(f"a device of type {device.type!r}, which has {why}")


def check_attention(device: torch.device, heads: tuple[int, int], size: int, dtype: torch.dtype) -> None:
    """Compare the device's kernel with the definition, in values and gradients, on a few hundred random tokens.

    Args:
        device: compute device.
        heads: number of query heads, and of key and value heads.
        size: dimension of a head.
        dtype: compute dtype of attention.

    Raises:
        UnsupportedAttentionError: results differ, or there is no kernel.
    """
    for segments, crossings, prefix in _PROBES:
        _check_attention(device, heads, size, dtype, segments, crossings, prefix)


def _check_attention(
    device: torch.device,
    heads: tuple[int, int],
    size: int,
    dtype: torch.dtype,
    segments: Segments,
    crossings: Crossings,
    prefix: int,
) -> None:
    plan = attention_plan(segments, crossings, 284, device, _PICTURES, prefix)
    draws = torch.Generator().manual_seed(0)
    shapes = [(284, heads[0], size), (284, heads[1], size), (284, heads[1], size)]
    query, key, value = (torch.randn(s, generator=draws).to(device, dtype).requires_grad_() for s in shapes)
    weights = torch.randn(shapes[0], generator=draws).to(device)
    with torch.enable_grad():
        out = plan.attend(0, query, key, value, size**-0.5)
        results = [out, *torch.autograd.grad((out.float() * weights).sum(), (query, key, value))]
        expected_out = dense_attention(segments, crossings, query, key, value, size**-0.5, _PICTURES, prefix)
        expected_loss = (expected_out.float() * weights).sum()
        expected = [expected_out, *torch.autograd.grad(expected_loss, (query, key, value))]
    with torch.inference_mode():  # as the sampler calls it
        again = attention_plan(segments, crossings, 284, device, _PICTURES, prefix)
        results.append(again.attend(0, query, key, value, size**-0.5))
        expected.append(expected_out)
    names = ("values", "gradients of queries", "gradients of keys", "gradients of values", "values in inference mode")
    for name, result, reference in zip(names, results, expected, strict=True):
        exact = reference.detach().double()
        difference = float((result.detach().double() - exact).abs().max() / exact.abs().max())
        if not difference <= _TOLERANCE.get(dtype, 0.05):
            raise UnsupportedAttentionError(f"an attention kernel whose {name} are off by {difference:.1g} on {device}")


def dense_attention(
    segments: Segments,
    crossings: Crossings,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scaling: float,
    blocks: Segments = (),
    prefix: int = 0,
) -> Tensor:
    """Attend by the definition, a softmax over all visible tokens: [M, H, d] over [M, K, d] to [M, H, d]."""
    visible = torch.zeros(len(query), len(query), dtype=torch.bool)
    visible[prefix:, :prefix] = True
    for start, length in segments:
        visible[start : start + length, start : start + length] = torch.ones(length, length).tril().bool()
    for start, length, begin, width in crossings:
        visible[start : start + length, begin : begin + width] = True
    for start, length in blocks:
        visible[start : start + length, start : start + length] = True
    repeats = query.shape[1] // key.shape[1]
    k, v = (x.repeat_interleave(repeats, dim=1) for x in (key, value))
    scores = torch.einsum("mhd,nhd->hmn", query, k) * scaling
    wide = torch.promote_types(scores.dtype, torch.float32)
    weights = scores.masked_fill(~visible.to(query.device), -torch.inf).softmax(-1, dtype=wide).to(value.dtype)
    return torch.einsum("hmn,nhd->mhd", weights, v)


class PrefixPlan:
    """Exact attention of M packed tokens on a CPU; see :class:`gspo_lightning.policy.attention.PackedLayout`.

    A response token sees its whole prompt and its own response up to itself. Both parts are computed without a mask and
    without copying the prompt, and joined by their log-sum-exp; so is a prefix that all prompts share. The backward
    pass gives each part the joined output and log-sum-exp, which makes its gradient exact (Dao et al., FlashAttention,
    arXiv 2205.14135, Eq. of the backward pass; Liu et al., Ring Attention, arXiv 2310.01889, joins blocks like this).

    Segments cover all tokens, with responses last. Tokens of one of ``blocks`` see each other.
    """

    def __init__(
        self,
        segments: Sequence[tuple[int, int]],
        crossings: Sequence[Span],
        longest: int,
        blocks: Sequence[tuple[int, int]] = (),
        prefix: int = 0,
    ) -> None:
        self.longest = longest
        within = Pass([(s, n, s, n) for s, n in segments], causal=True, blocks=blocks)
        rest = sum(length for _, length in segments) - prefix
        self.passes = [within]
        """Within segments first; then over the prefix and over prompts, where there are any."""
        if prefix:
            self.passes.append(Pass([(prefix, rest, 0, prefix)], causal=False))
        if crossings:
            self.passes.append(Pass(crossings, causal=False))

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """Attend with [M, H, d] over [M, K, d]; returns [M, H, d]."""
        out: Tensor = _SharedPrefix.apply(query, key, value, self, scaling)  # type: ignore[no-untyped-call]
        return out

    def forward(self, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> tuple[Tensor, Tensor]:
        """Return ``out`` [M, H, d], in the dtype of the queries, and log-sum-exp [M, H], float32 or wider."""
        within, *crossing = self.passes
        out, lse = within.forward(query, key, value, scaling)
        for cross in crossing:
            _join(out[cross.first :], lse[cross.first :], *cross.forward(query, key, value, scaling))
        return out, lse


class _SharedPrefix(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, plan: PrefixPlan, scaling: float) -> Tensor:
        out, lse = plan.forward(query, key, value, scaling)
        ctx.save_for_backward(query, key, value, out, lse)
        ctx.passes = plan.passes
        ctx.scaling = scaling
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, out, lse = ctx.saved_tensors
        within, *crossing = ctx.passes
        inputs = grads[0].contiguous(), query, key, value, out, lse, ctx.scaling
        d_query, d_key, d_value = within.backward(*inputs)
        for cross in crossing:
            d_cross_query, d_cross_key, d_cross_value = cross.backward(*inputs)
            d_query[cross.first :] += d_cross_query
            d_key.index_add_(0, cross.keys, d_cross_key)
            d_value.index_add_(0, cross.keys, d_cross_value)
        return d_query, d_key, d_value, None, None


def _join(out: Tensor, lse: Tensor, other: Tensor, other_lse: Tensor) -> None:
    """Join attention over further keys into ``out`` [m, H, d] and ``lse`` [m, H], in place."""
    joined = torch.logaddexp(lse, other_lse)
    share = torch.sub(other_lse, joined).exp_().unsqueeze(-1).to(out.dtype)
    out.lerp_(other, share)
    lse.copy_(joined)
