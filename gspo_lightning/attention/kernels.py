"""The two pieces of shared-prefix attention on a CPU: causal within a segment, and whole responses over a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Crossing", "Kernel"]

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
WASTE = 1.2
"""Padded over real tokens that a bucket of segments may have."""


@dataclass(frozen=True, slots=True)
class Crossing:
    """All responses of one prompt, which stand side by side, and the prompt."""

    queries: slice
    keys: slice


@dataclass(slots=True)
class _Bucket:
    """Segments of similar length as a padded [B, L] batch."""

    index: Tensor  # [B, L] packed positions; padding repeats the last token, which no real query sees
    inside: Tensor | None  # [B, 1, L, 1] False on padding; None where there is none
    real: Tensor  # places in [B * L] that are not padding
    places: Tensor  # their packed positions


class Kernel:
    """PyTorch's own flash kernel, segments of similar length side by side."""

    def __init__(self, segments: Sequence[tuple[int, int]], crossings: Sequence[tuple[int, int, int, int]]) -> None:
        self.crossings = [Crossing(slice(q, q + n), slice(k, k + m)) for q, n, k, m in crossings]
        self.buckets = [_bucket(part) for part in _similar(segments)]

    def own(self, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> tuple[Tensor, Tensor]:
        """Causal attention within each segment: ``out`` [M, H, d] and log-sum-exp [M, H], float32 or wider."""
        out = torch.empty_like(query, memory_format=torch.contiguous_format)
        wide = torch.promote_types(query.dtype, torch.float32)
        lse = query.new_empty(query.shape[:2], dtype=wide)
        for bucket in self.buckets:
            q, k, v = (_padded(x, bucket, query.shape[1]) for x in (query, key, value))
            o, s = _flash(q, k, v, 0.0, True, scale=scaling)
            _unpad(out, bucket, o)
            _unpad(lse, bucket, s)
        return out, lse

    def own_backward(
        self, gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor, scaling: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of the causal part, given the joined ``out`` and ``lse``."""
        heads = query.shape[1]
        found = tuple(torch.empty_like(x, memory_format=torch.contiguous_format) for x in (query, key, value))
        for bucket in self.buckets:
            g, q, k, v, o = (_padded(x, bucket, heads) for x in (gradient, query, key, value, out))
            if bucket.inside is not None:
                g = g * bucket.inside.to(g.dtype)
            s = lse[bucket.index].transpose(1, 2)
            parts = _flash_backward(g, q, k, v, o, s, 0.0, True, scale=scaling)
            for whole, part in zip(found, parts, strict=True):
                _unpad(whole, bucket, _grouped(part, whole.shape[1]))
        return found  # type: ignore[return-value]

    def cross(
        self, crossing: Crossing, query: Tensor, key: Tensor, value: Tensor, scaling: float
    ) -> tuple[Tensor, Tensor]:
        """Every response token of a prompt over the whole prompt: [m, H, d] and [m, H]."""
        k, v = (_rows(x[crossing.keys]) for x in (key, value))
        q = _folded(query[crossing.queries], k.shape[1])
        o, s = _flash(q, k, v, 0.0, False, scale=scaling)
        shape = query[crossing.queries].shape
        return _unfolded(o, shape), _unfolded(s.unsqueeze(-1), (*shape[:2], 1)).squeeze(-1)

    def cross_backward(
        self,
        crossing: Crossing,
        gradient: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        out: Tensor,
        lse: Tensor,
        scaling: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of the crossing part, given the joined ``out`` and ``lse``."""
        at = crossing.queries
        k, v = (_rows(x[crossing.keys]) for x in (key, value))
        g, q, o = (_folded(x[at], k.shape[1]) for x in (gradient, query, out))
        s = _folded(lse[at].unsqueeze(-1), k.shape[1]).squeeze(-1)
        d_q, d_k, d_v = _flash_backward(g, q, k, v, o, s, 0.0, False, scale=scaling)
        return _unfolded(d_q, query[at].shape), d_k[0].transpose(0, 1), d_v[0].transpose(0, 1)


def _similar(segments: Sequence[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """Segments sorted by length and cut where padding would cost too much."""
    groups: list[list[tuple[int, int]]] = []
    real = 0
    for start, length in sorted(segments, key=lambda s: -s[1]):
        if groups and (len(groups[-1]) + 1) * groups[-1][0][1] <= WASTE * (real + length):
            groups[-1].append((start, length))
            real += length
        else:
            groups.append([(start, length)])
            real = length
    return groups


def _bucket(segments: Sequence[tuple[int, int]]) -> _Bucket:
    starts, lengths = (torch.tensor(x).unsqueeze(1) for x in zip(*segments, strict=True))
    steps = torch.arange(int(lengths.max())).unsqueeze(0)
    index = starts + torch.minimum(steps, lengths - 1)
    inside = steps < lengths
    real = inside.flatten().nonzero().squeeze(1)
    padding = None if bool(inside.all()) else inside[:, None, :, None]
    return _Bucket(index, padding, real, index.flatten()[real])


def _padded(x: Tensor, bucket: _Bucket, heads: int) -> Tensor:
    """[M, K, d] to [B, H, L, d]."""
    rows = x[bucket.index].transpose(1, 2)
    return rows if rows.shape[1] == heads else rows.repeat_interleave(heads // rows.shape[1], dim=1)


def _grouped(x: Tensor, heads: int) -> Tensor:
    """Gradients [B, H, L, d] of repeated heads to those [B, K, L, d] of the heads themselves."""
    return x if x.shape[1] == heads else x.unflatten(1, (heads, -1)).sum(2)


def _unpad(whole: Tensor, bucket: _Bucket, part: Tensor) -> None:
    """Write [B, K, L, ...] to its places in [M, K, ...]."""
    flat = part.transpose(1, 2).flatten(0, 1)
    whole[bucket.places] = flat if bucket.inside is None else flat[bucket.real]


def _rows(x: Tensor) -> Tensor:
    """[m, K, d] to [1, K, m, d]."""
    return x.transpose(0, 1).unsqueeze(0)


def _folded(x: Tensor, heads: int) -> Tensor:
    """[m, H, d] to [1, K, H / K * m, d]: query heads that share a key head stand one after another."""
    tokens, _, size = x.shape
    return x.reshape(tokens, heads, -1, size).permute(1, 2, 0, 3).reshape(1, heads, -1, size)


def _unfolded(x: Tensor, shape: Sequence[int]) -> Tensor:
    """The inverse of :func:`_folded`."""
    tokens, _, size = shape
    return x.reshape(x.shape[1], -1, tokens, size).permute(2, 0, 1, 3).reshape(tokens, -1, size)
