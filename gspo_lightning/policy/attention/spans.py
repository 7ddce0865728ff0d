"""Attention of one token per row over spans of a store: lengths are data on the device, nothing is padded or masked.

A row sees two spans, its prompt's and its own. Each is attended alone, and the two are joined by their log-sum-exp
(Dao et al., FlashAttention, arXiv 2205.14135). On CUDA a span is one launch of FlashAttention-2, which PyTorch brings;
elsewhere it is computed by its definition, the reference.

Shapes: R rows, K key-value heads, n query heads for each of them, d numbers per head, T places of the store. Queries,
key and value of a row lie side by side as ``qkv`` [R, n + 2, K, d]: the kernel then takes them as they are, with two
queries per row whose results are not used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

FLASH_ARGUMENTS = (
    "query", "key", "value", "cum_seq_q", "cum_seq_k", "max_q", "max_k", "dropout_p", "is_causal", "return_debug_mask",
    "scale", "seqused_k",
)  # fmt: skip
"""Arguments of ``aten._flash_attention_forward`` that :func:`attend_by_flash` passes."""
FLASH_DTYPES = (torch.bfloat16, torch.float16)
LARGEST_HEAD = 256


@dataclass(slots=True)
class Span:
    """Places that each row sees.

    Args:
        starts: [R + 1] int32, the first place of each row; the last number is not used.
        lengths: [R] int32, places of each row; 0: the row sees nothing.
        longest: bound of the lengths.
    """

    starts: Tensor
    lengths: Tensor
    longest: int


Join = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""See :func:`joined`."""
Attend = Callable[[Tensor, Tensor, Span, Tensor, float], tuple[Tensor, Tensor]]
"""``(qkv [R, n + 2, K, d], store [T, 2, K, d], span, queries [R + 1], scaling)`` -> ``out`` [R, n, K, d] and
log-sum-exp [R, n, K]. A row of length 0 gets zeros, and an infinite log-sum-exp of either sign."""


def attend_by_definition(
    qkv: Tensor, store: Tensor, span: Span, queries: Tensor, scaling: float
) -> tuple[Tensor, Tensor]:
    """Attend in float32 or wider, by plain products; see :data:`Attend`."""
    wide = torch.promote_types(qkv.dtype, torch.float32)
    query = qkv[:, :-2].to(wide)
    places = torch.arange(span.longest, device=qkv.device)
    index = (span.starts[:-1].unsqueeze(1) + places).clamp(max=len(store) - 1)
    keys, values = store[index].to(wide).unbind(2)
    scores = torch.einsum("rnkd,rlkd->rnkl", query, keys) * scaling
    unseen = (places >= span.lengths.unsqueeze(1))[:, None, None]
    scores = scores.masked_fill(unseen, -torch.inf)
    lse = scores.logsumexp(-1)
    weights = (scores - lse.clamp(min=torch.finfo(wide).min).unsqueeze(-1)).exp()
    return torch.einsum("rnkl,rlkd->rnkd", weights, values).to(qkv.dtype).contiguous(), lse


def attend_by_flash(qkv: Tensor, store: Tensor, span: Span, queries: Tensor, scaling: float) -> tuple[Tensor, Tensor]:
    """Attend by one launch of PyTorch's FlashAttention-2 on CUDA; see :data:`Attend`.

    ``queries`` [R + 1] int32 are the multiples of n + 2. With more than one query per row PyTorch neither transposes
    queries and results nor splits the keys, which would be more launches.
    """
    rows, slots, heads, size = qkv.shape
    out, lse, *_ = torch.ops.aten._flash_attention_forward(
        qkv.view(rows * slots, heads, size), store[:, 0], store[:, 1], queries, span.starts, slots, span.longest,
        0.0, False, False, scale=scaling, seqused_k=span.lengths,
    )  # fmt: skip
    lse = lse.view(heads, rows, slots).permute(1, 2, 0)
    return out.view(rows, slots, heads, size)[:, :-2], lse[:, :-2]


def why_no_flash(device: torch.device, dtype: torch.dtype, size: int) -> str | None:
    """Return why spans cannot be attended by FlashAttention-2, or None."""
    if device.type != "cuda":
        return f"a device of type {device.type}"
    if dtype not in FLASH_DTYPES or size % 8 or size > LARGEST_HEAD:
        return f"no kernel for {dtype} and heads of {size}"
    schema = torch.ops.aten._flash_attention_forward.default._schema
    missing = [name for name in FLASH_ARGUMENTS if name not in {argument.name for argument in schema.arguments}]
    return f"PyTorch's FlashAttention does not take {', '.join(missing)}" if missing else None


def joined(out: Tensor, lse: Tensor, other: Tensor, other_lse: Tensor) -> Tensor:
    """Join attention over two sets of keys: ``out`` and ``other`` [..., d], log-sum-exp [...]; returns [..., d].

    The first set is not empty; the second may be.
    """
    share = torch.sigmoid(other_lse - lse).to(out.dtype)
    return torch.lerp(out, other, share.unsqueeze(-1))
