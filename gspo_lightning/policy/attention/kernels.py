"""Shared-prefix attention on a CPU, in two passes: causal within a segment, and responses over their prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
WASTE = 1.2
"""Largest size of a bucket, as a multiple of its real tokens; :data:`SPARE` more are free."""
SPARE = 128
"""Tokens of padding that cost as much as another call of the kernel."""

Span = tuple[int, int, int, int]
"""Start and length of queries, then start and length of the keys they see; in packed tokens."""


@dataclass(slots=True)
class _Bucket:
    """Spans of similar length as a padded batch of B; padding repeats the last token."""

    queries: Tensor  # [B * L] packed tokens
    keys: Tensor  # [B * S] packed tokens
    size: int  # B
    inside: Tensor | None  # [B, L, 1, 1] 0 on padded queries; None without padding
    mask: Tensor | None  # [B, 1, 1 or L, S] -inf on unseen keys; None if all are seen or the kernel masks


class Pass:
    """PyTorch's flash kernel over spans, batched by similar length.

    Each packed token from ``first`` on is a query in exactly one span.

    Args:
        spans: queries and the keys they see: all of them or, with ``causal``, those up to themselves.
        causal: queries and keys of a span are the same tokens.
        blocks: (start, length) of tokens inside a causal span that see each other.
    """

    def __init__(self, spans: Sequence[Span], *, causal: bool, blocks: Sequence[tuple[int, int]] = ()) -> None:
        self.causal = causal
        self.first = min(span[0] for span in spans)
        blocks_in: dict[Span, list[tuple[int, int]]] = {}
        if blocks:
            for span in spans:
                start, length = span[:2]
                blocks_in[span] = [block for block in blocks if start <= block[0] < start + length]
        parts = _similar([span for span in spans if not blocks_in.get(span)])
        self.buckets = [_bucket(part, causal) for part in parts]
        for part in _similar([span for span in spans if blocks_in.get(span)]):
            parts.append(part)
            self.buckets.append(_seeing_blocks(part, blocks_in))
        tokens, places = _real(parts, 0)
        self.query_back = torch.empty_like(places)
        self.query_back[tokens - self.first] = places
        if causal:  # queries and keys are the same tokens
            self.keys = tokens.sort().values
            self.key_back = self.query_back
        else:
            self.keys, self.key_back = _real(parts, 2)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> tuple[Tensor, Tensor]:
        """Attend with the queries from ``first`` on: ``out`` [m, H, d] and log-sum-exp [m, H], float32 or wider."""
        outs = []
        sums = []
        for bucket in self.buckets:
            q, k, v = self._heads(bucket, query, key, value)
            out, lse = _flash(q, k, v, 0.0, self._causal(bucket), attn_mask=_as(bucket.mask, q), scale=scaling)
            outs.append(self._flat(out, query))
            sums.append(self._flat(lse.unsqueeze(-1), query).squeeze(-1))
        return _joined(outs).index_select(0, self.query_back), _joined(sums).index_select(0, self.query_back)

    def backward(
        self, gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor, scaling: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Compute gradients of this pass, given the joined ``out`` and ``lse`` of all tokens.

        Returns:
            gradients of the queries from ``first`` on, and of the keys and values of the tokens ``keys``.
        """
        d_queries: list[Tensor] = []
        d_keys: list[Tensor] = []
        d_values: list[Tensor] = []
        for bucket in self.buckets:
            q, k, v = self._heads(bucket, query, key, value)
            d_out = _rows(gradient, bucket.queries, bucket.size)
            if bucket.inside is not None:  # padded queries repeat a token, which counts once
                d_out = d_out * bucket.inside.to(d_out.dtype)
            bucket_out = _rows(out, bucket.queries, bucket.size)
            bucket_lse = _rows(lse.unsqueeze(-1), bucket.queries, bucket.size)
            d_out, bucket_out, bucket_lse = (self._folded(x, key.shape[1]) for x in (d_out, bucket_out, bucket_lse))
            mask = _as(bucket.mask, q)
            d_q, d_k, d_v = _flash_backward(
                d_out, q, k, v, bucket_out, bucket_lse.squeeze(-1), 0.0, self._causal(bucket), attn_mask=mask,
                scale=scaling,
            )  # fmt: skip
            d_queries.append(self._flat(d_q, query))
            d_keys.append(_grouped(d_k, key.shape[1]).transpose(1, 2).flatten(0, 1))
            d_values.append(_grouped(d_v, key.shape[1]).transpose(1, 2).flatten(0, 1))
        return (
            _joined(d_queries).index_select(0, self.query_back),
            _joined(d_keys).index_select(0, self.key_back),
            _joined(d_values).index_select(0, self.key_back),
        )

    def _causal(self, bucket: _Bucket) -> bool:
        """True if the kernel itself masks causally."""
        return self.causal and bucket.mask is None

    def _heads(self, bucket: _Bucket, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q = self._folded(_rows(query, bucket.queries, bucket.size), key.shape[1])
        k = _rows(key, bucket.keys, bucket.size).transpose(1, 2)
        v = _rows(value, bucket.keys, bucket.size).transpose(1, 2)
        repeats = q.shape[1] // k.shape[1]
        if repeats > 1:
            k = k.repeat_interleave(repeats, dim=1)
            v = v.repeat_interleave(repeats, dim=1)
        return q, k, v

    def _folded(self, x: Tensor, heads: int) -> Tensor:
        """Reorder [B, L, H, d] to [B, H, L, d]; without a causal mask, stack the queries of heads that share a key."""
        if self.causal or x.shape[2] == heads:
            return x.transpose(1, 2)
        return x.unflatten(2, (heads, -1)).permute(0, 2, 3, 1, 4).flatten(2, 3)

    def _flat(self, x: Tensor, query: Tensor) -> Tensor:
        """Undo :meth:`_folded`, giving [B * L, H, d]."""
        size, heads, _, width = x.shape
        if heads == query.shape[1]:
            return x.transpose(1, 2).flatten(0, 1)
        shared = query.shape[1] // heads
        return x.view(size, heads, shared, -1, width).permute(0, 3, 1, 2, 4).reshape(-1, heads * shared, width)


def _similar(spans: Sequence[Span]) -> list[list[Span]]:
    """Sort spans by length and split them where padding would cost too much."""
    groups: list[list[Span]] = []
    real = longest = 0
    for span in sorted(spans, key=lambda s: (-s[1], -s[3])):
        _, queries, _, keys = span
        size = queries + keys
        widest = max(longest, keys)
        if groups:
            padded = (len(groups[-1]) + 1) * (groups[-1][0][1] + widest)
            if padded <= WASTE * (real + size) + SPARE:
                groups[-1].append(span)
                real += size
                longest = widest
                continue
        groups.append([span])
        real = size
        longest = keys
    return groups


def _bucket(spans: Sequence[Span], causal: bool) -> _Bucket:
    query_start, query_count, key_start, key_count = torch.tensor(spans).unsqueeze(-1).unbind(1)  # [B, 1] each
    steps = torch.arange(int(query_count.max()))
    places = torch.arange(int(key_count.max()))
    inside = steps < query_count
    visible = places < key_count
    mask = None
    if not causal and not bool(visible.all()):
        mask = torch.zeros(visible.shape).masked_fill(~visible, -torch.inf)[:, None, None]
    return _Bucket(
        queries=(query_start + torch.minimum(steps, query_count - 1)).flatten(),
        keys=(key_start + torch.minimum(places, key_count - 1)).flatten(),
        size=len(spans),
        inside=None if bool(inside.all()) else inside[:, :, None, None],
        mask=mask,
    )


def _seeing_blocks(spans: Sequence[Span], blocks: Mapping[Span, Sequence[tuple[int, int]]]) -> _Bucket:
    """Batch causal spans in which the tokens of a block see each other, with an explicit mask."""
    bucket = _bucket(spans, causal=True)
    longest = max(span[1] for span in spans)
    visible = torch.ones(len(spans), longest, longest, dtype=torch.bool).tril()
    for i, span in enumerate(spans):
        for start, length in blocks[span]:
            inside = slice(start - span[0], start - span[0] + length)
            visible[i, inside, inside] = True
    bucket.mask = torch.zeros(visible.shape).masked_fill_(~visible, -torch.inf).unsqueeze(1)
    return bucket


def _real(parts: Sequence[Sequence[Span]], field: int) -> tuple[Tensor, Tensor]:
    """Return the packed tokens of the queries (0) or keys (2) of all buckets in order, and each one's padded place."""
    tokens = []
    places = []
    offset = 0
    for spans in parts:
        longest = max(span[field + 1] for span in spans)
        for i, span in enumerate(spans):
            steps = torch.arange(span[field + 1])
            tokens.append(span[field] + steps)
            places.append(offset + i * longest + steps)
        offset += len(spans) * longest
    return torch.cat(tokens), torch.cat(places)


def _rows(x: Tensor, index: Tensor, size: int) -> Tensor:
    """Gather rows: [M, K, d] to [B, L, K, d]."""
    return x.index_select(0, index).unflatten(0, (size, -1))


def _grouped(x: Tensor, heads: int) -> Tensor:
    """Sum gradients [B, H, L, d] of repeated heads to those [B, K, L, d] of the heads themselves."""
    return x if x.shape[1] == heads else x.unflatten(1, (heads, -1)).sum(2)


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def _as(mask: Tensor | None, x: Tensor) -> Tensor | None:
    return None if mask is None else mask.to(x.dtype)
