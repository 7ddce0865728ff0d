"""Functions between the products of a decode step; each is one kernel if PyTorch's compiler makes it.

Shapes: R rows, K key-value heads, n query heads for each, d numbers per head, D of the residual stream.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import rms_norm
from torch.utils import _triton

from gspo_lightning.policy.attention.spans import joined


def normed(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """Return the normed [R, D] in a dtype."""
    return rms_norm(x, weight.shape, weight, eps).to(dtype)


def added(x: Tensor, more: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the residual stream [R, D] with a layer's part, and the normed sum in a dtype."""
    total = x + more
    return total, normed(total, weight, eps, dtype)


def turned(qkv: Tensor, count: int, cos: Tensor, sin: Tensor, scale: Tensor | None, eps: float) -> Tensor:
    """Norm and rotate queries and keys in place.

    Args:
        qkv: [R, (n + 2) * K, d].
        count: (n + 1) * K, all but the values.
        cos: [R, 1, d].
        sin: [R, 1, d], its first half negated.
        scale: [(n + 2) * K, d] of the norms, if there are any; what it says of values is not used.
        eps: of the norms.
    """
    qk = qkv[:, :count]
    if scale is not None:
        qk = rms_norm(qk, qk.shape[-1:], None, eps) * scale[:count]
    torch.addcmul(qk * cos, qk.roll(cos.shape[-1] // 2, -1), sin, out=qkv[:, :count])
    return qkv


def turned_apart(qkv: Tensor, count: int, cos: Tensor, sin: Tensor, scale: Tensor | None, eps: float) -> Tensor:
    """Return what :func:`turned` writes; a compiler makes one kernel of it only if nothing is written over."""
    x, half = qkv, cos.shape[-1] // 2
    if scale is not None:
        x = rms_norm(qkv, qkv.shape[-1:], None, eps) * scale
    rotated = torch.addcmul(x * cos, x.roll(half, -1), sin).to(qkv.dtype)
    return torch.where(torch.arange(qkv.shape[1], device=qkv.device).unsqueeze(1) < count, rotated, qkv)


def gated(gate_up: Tensor, act: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the product of the activated half of [R, 2 * I] and the other one."""
    gate, up = gate_up.chunk(2, dim=-1)
    return act(gate) * up


@dataclass(frozen=True)
class Pieces:
    """The functions of this module, or compiled forms of them."""

    normed: Callable[[Tensor, Tensor, float, torch.dtype], Tensor] = normed
    added: Callable[[Tensor, Tensor, Tensor, float, torch.dtype], tuple[Tensor, Tensor]] = added
    turned: Callable[[Tensor, int, Tensor, Tensor, Tensor | None, float], Tensor] = turned
    gated: Callable[[Tensor, Callable[[Tensor], Tensor]], Tensor] = gated
    joined: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor] = joined
    compiled: bool = False


def compiled_pieces() -> Pieces:
    """Return pieces that are compiled when they are called; the number of rows may change."""
    return Pieces(
        torch.compile(normed),
        torch.compile(added),
        torch.compile(turned_apart),
        torch.compile(gated),
        torch.compile(joined),
        compiled=True,
    )


def can_compile(device: torch.device) -> bool:
    """True if PyTorch's compiler has what it needs for a device."""
    return device.type == "cuda" and bool(_triton.has_triton())
