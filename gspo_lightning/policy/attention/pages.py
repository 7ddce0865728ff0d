"""Attention whose bits depend on a query and its keys alone: pages of keys in the order of their positions.

Training, prefill and decoding call one function. Every product has one shape: a tile of queries of a key-value head
times a page of :data:`PAGE` keys, in float32 or wider. Pages begin at multiples of :data:`PAGE` in a row, whatever
shares its prompt, and are joined by an online softmax from the first to the last. A page that a query does not see
multiplies by exactly 1 and adds exactly 0. Rows share the pages that their prompt fills, as in PagedAttention
(arXiv 2309.06180).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from gspo_lightning.policy.attention.kernels import Span
from gspo_lightning.policy.attention.plans import PrefixPlan

PAGE = 64
"""Keys of a page."""
ROWS = 16
"""Rows of a tile of queries are a multiple of it: with fewer, a product may depend on the number of its matrices."""
BUFFER = 1 << 20
"""Elements of the pages of keys that exist at a time, in one batch of products."""


def rows_of_tile(shared: int) -> tuple[int, int]:
    """Return the tokens of a tile and its rows, where ``shared`` query heads read a key-value head.

    >>> rows_of_tile(1), rows_of_tile(3), rows_of_tile(24)
    ((16, 16), (5, 16), (1, 32))
    """
    tokens = max(1, ROWS // shared)
    return tokens, -(-tokens * shared // ROWS) * ROWS


def attend_pages(
    query: Tensor, last: Tensor, keys: Tensor, values: Tensor, table: Tensor, scaling: float
) -> tuple[Tensor, Tensor]:
    """Attend with tiles of queries over pages of keys, in float32 or wider.

    Args:
        query: [T, K, n, d], K key-value heads.
        last: [T, n] position of each query, the last one that it sees.
        keys: [P, K, PAGE, d], finite everywhere.
        values: [P, K, PAGE, d], finite everywhere.
        table: [T, pages] number of each page of a tile's row.
        scaling: of the scores.

    Returns:
        ``out`` [T, K, n, d] and log-sum-exp [T, K, n].
    """
    wide = torch.promote_types(query.dtype, torch.float32)
    out = torch.empty(query.shape, dtype=wide, device=query.device)
    lse = torch.empty(query.shape[:-1], dtype=wide, device=query.device)
    size = max(1, BUFFER // keys[:1].numel())
    for tiles in last.amax(-1).argsort().split(size):  # neighbours see about as many pages
        out[tiles], lse[tiles] = _attend(query[tiles], last[tiles], keys, values, table[tiles], scaling)
    return out, lse


def _attend(
    query: Tensor, last: Tensor, keys: Tensor, values: Tensor, table: Tensor, scaling: float
) -> tuple[Tensor, Tensor]:
    tiles, heads, rows, _ = query.shape
    wide = torch.promote_types(query.dtype, torch.float32)
    q = query.to(wide).flatten(0, 1).contiguous()
    top = q.new_full((len(q), rows, 1), -torch.inf)
    total = torch.zeros_like(top)
    acc = torch.zeros_like(q)
    places = torch.arange(PAGE, device=q.device)
    for page in range(int(last.max()) // PAGE + 1):
        k, v = (x.index_select(0, table[:, page]).to(wide).flatten(0, 1) for x in (keys, values))
        scores = torch.bmm(q, k.transpose(1, 2)).mul_(scaling)
        unseen = (places + page * PAGE) > last.unsqueeze(-1)
        scores.view(tiles, heads, rows, PAGE).masked_fill_(unseen.unsqueeze(1), -torch.inf)
        # online softmax: earlier sums are rescaled to the largest score so far
        new_top = torch.maximum(top, scores.amax(-1, keepdim=True))  # finite: every query sees the first position
        weights = torch.exp(scores - new_top)
        rescale = torch.exp(top - new_top)
        total = total * rescale + weights.sum(-1, keepdim=True)
        acc = acc * rescale + torch.bmm(weights, v)
        top = new_top
    shape = tiles, heads, rows
    return (acc / total).view(*shape, -1), (top + total.log()).view(shape)


@dataclass(frozen=True, slots=True)
class _Tiles:
    """Tiles of queries: packed ``tokens`` [T, c], ``last`` [T, n], ``rows`` [T], and each token's ``back`` in T * c."""

    tokens: Tensor
    last: Tensor
    rows: Tensor
    back: Tensor


class PagedPlan(PrefixPlan):
    """Attention of M packed tokens by pages; the backward pass is that of :class:`PrefixPlan`.

    Segments cover all tokens, with responses last. ``sequences`` are the packed tokens of every segment and of what it
    sees, by position, and ``index`` [pages, PAGE] those of every page, each once.
    """

    def __init__(
        self, segments: Sequence[tuple[int, int]], crossings: Sequence[Span], longest: int, prefix: int = 0
    ) -> None:
        super().__init__(segments, crossings, longest, (), prefix)
        self.segments = [(start, length) for start, length in segments if length]
        self.sequences = [self._seen(start, length, crossings, prefix) for start, length in self.segments]
        self.index, self.table = pages_of(self.sequences)
        self._tiles: dict[int, _Tiles] = {}

    @staticmethod
    def _seen(start: int, length: int, crossings: Sequence[Span], prefix: int) -> list[int]:
        before = list(range(prefix)) if start >= prefix else []
        for first, count, begin, width in crossings:
            if first <= start < first + count:
                before += range(begin, begin + width)
        return [*before, *range(start, start + length)]

    @override
    def forward(self, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> tuple[Tensor, Tensor]:
        heads = key.shape[1]
        shared = query.shape[1] // heads
        tiles = self._tiles_of(shared, query.device)
        count, width = tiles.tokens.shape
        q = query[tiles.tokens].view(count, width, heads, shared, -1).transpose(1, 2).flatten(2, 3)
        q = torch.nn.functional.pad(q, (0, 0, 0, tiles.last.shape[1] - q.shape[2]))
        index = self.index.to(key.device)
        keys, values = (x[index].transpose(1, 2) for x in (key, value))
        out, lse = attend_pages(q, tiles.last, keys, values, self.table.to(key.device)[tiles.rows], scaling)
        out, lse = (x[:, :, : width * shared].unflatten(2, (width, shared)).transpose(1, 2) for x in (out, lse))
        out = out.reshape(count * width, heads * shared, -1)[tiles.back].to(query.dtype)
        return out, lse.reshape(count * width, -1)[tiles.back]

    def _tiles_of(self, shared: int, device: torch.device) -> _Tiles:
        if shared not in self._tiles:
            width, rows = rows_of_tile(shared)
            tokens: list[Tensor] = []
            last: list[Tensor] = []
            owner: list[Tensor] = []
            back = torch.empty(sum(length for _, length in self.segments), dtype=torch.int64)
            for row, (start, length) in enumerate(self.segments):
                count = -(-length // width)
                steps = torch.arange(count * width)
                back[start : start + length] = steps[:length] + sum(len(x) for x in owner) * width
                steps = steps.clamp(max=length - 1).view(count, width)
                tokens.append(start + steps)
                visible = (len(self.sequences[row]) - length + steps).repeat_interleave(shared, dim=1)
                last.append(torch.nn.functional.pad(visible, (0, rows - width * shared)))
                owner.append(torch.full((count,), row))
            self._tiles[shared] = _Tiles(
                torch.cat(tokens).to(device), torch.cat(last).to(device), torch.cat(owner).to(device), back.to(device)
            )
        return self._tiles[shared]


def pages_of(sequences: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Return the tokens of every page [pages, PAGE], each page once, and the pages of every sequence.

    Places beyond a sequence hold token 0, which nobody sees; so do pages beyond it.

    >>> index, table = pages_of([range(64), [*range(64), 70]])
    >>> index.shape, table.tolist()
    (torch.Size([2, 64]), [[0, 0], [0, 1]])
    """
    numbers: dict[tuple[int, ...], int] = {}
    rows = []
    for sequence in sequences:
        cut = [tuple(sequence[i : i + PAGE]) for i in range(0, len(sequence), PAGE)]
        rows.append([numbers.setdefault(page, len(numbers)) for page in cut])
    widest = max(map(len, rows))
    index = torch.tensor([[*page, *[0] * (PAGE - len(page))] for page in numbers])
    return index, torch.tensor([[*row, *[0] * (widest - len(row))] for row in rows])
