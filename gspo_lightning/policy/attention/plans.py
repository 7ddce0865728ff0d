"""Choose the attention kernel of a device, and check it against the definition."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gspo_lightning.policy.attention.flex import FlexPlan, has_flex
from gspo_lightning.policy.attention.interface import Plan, UnsupportedAttentionError
from gspo_lightning.policy.attention.prefix import PrefixPlan

__all__ = ["attention_plan", "check_attention", "dense_attention"]

Segments = Sequence[tuple[int, int]]
Crossings = Sequence[tuple[int, int, int, int]]

_PROBE: tuple[Segments, Crossings] = (
    [(0, 150), (150, 3), (153, 90), (243, 1), (244, 40)],
    [(153, 91, 0, 150), (244, 40, 150, 3)],
)
_PICTURES: Segments = [(100, 40), (155, 9)]
"""Probe tokens that see each other; the first span lies in two blocks of the CUDA kernel."""
_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-3}
"""Largest difference, relative to the largest element, that counts as rounding; 0.05 in half precision."""


def attention_plan(
    segments: Segments, crossings: Crossings, longest: int, device: torch.device, blocks: Segments = ()
) -> Plan:
    """Return the attention plan of packed tokens; see :class:`gspo_lightning.policy.attention.PackedLayout`.

    Args:
        segments: (start, length) of prompts and responses.
        crossings: (start and length of the responses to a prompt, start and length of the prompt).
        longest: tokens of the longest row.
        device: of the tensors that attend.
        blocks: (start, length) of tokens that see each other, each inside a segment.

    Raises:
        UnsupportedAttentionError: no kernel for this device.
    """
    if has_flex(device):
        return FlexPlan(segments, crossings, longest, device, blocks)
    if device.type == "cpu":
        return PrefixPlan(segments, crossings, longest, blocks)
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
    plan = attention_plan(*_PROBE, 240, device, _PICTURES)
    draws = torch.Generator().manual_seed(0)
    shapes = [(284, heads[0], size), (284, heads[1], size), (284, heads[1], size)]
    query, key, value = (torch.randn(s, generator=draws).to(device, dtype).requires_grad_() for s in shapes)
    weights = torch.randn(shapes[0], generator=draws).to(device)
    with torch.enable_grad():
        ours = plan.attend(0, query, key, value, size**-0.5)
        theirs = dense_attention(*_PROBE, query, key, value, size**-0.5, _PICTURES)
        found, expected = (
            [out, *torch.autograd.grad((out.float() * weights).sum(), (query, key, value))] for out in (ours, theirs)
        )
    with torch.inference_mode():  # as the sampler calls it
        again = attention_plan(*_PROBE, 240, device, _PICTURES)
        found.append(again.attend(0, query, key, value, size**-0.5))
        expected.append(theirs)
    names = ("values", "gradients of queries", "gradients of keys", "gradients of values", "values in inference mode")
    for name, mine, other in zip(names, found, expected, strict=True):
        mine, other = mine.detach().double(), other.detach().double()
        difference = float((mine - other).abs().max() / other.abs().max())
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
) -> Tensor:
    """Attend by the definition, a softmax over all visible tokens: [M, H, d] over [M, K, d] to [M, H, d]."""
    seen = torch.zeros(len(query), len(query), dtype=torch.bool)
    for start, length in segments:
        seen[start : start + length, start : start + length] = torch.ones(length, length).tril().bool()
    for start, length, begin, width in crossings:
        seen[start : start + length, begin : begin + width] = True
    for start, length in blocks:
        seen[start : start + length, start : start + length] = True
    repeats = query.shape[1] // key.shape[1]
    k, v = (x.repeat_interleave(repeats, dim=1) for x in (key, value))
    scores = torch.einsum("mhd,nhd->hmn", query, k) * scaling
    wide = torch.promote_types(scores.dtype, torch.float32)
    weights = scores.masked_fill(~seen.to(query.device), -torch.inf).softmax(-1, dtype=wide).to(value.dtype)
    return torch.einsum("hmn,nhd->mhd", weights, v)
