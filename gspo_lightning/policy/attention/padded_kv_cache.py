"""KV cache of rows that are padded to each other during sampling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

FIRST = 32
"""Tokens of a page: the capacity of a row is a multiple of it."""

SMALL_PRODUCT = 400
"""Size in multiplications below which PyTorch's batched CPU product is a plain loop, slower than a larger one."""

NEEDED = 0.75
"""Used share of the capacity below which the rest is freed, which copies every row."""


def capacity(tokens: int) -> int:
    """Return the capacity of a row that needs ``tokens`` tokens: an eighth more, in whole pages."""
    return -(-(tokens + tokens // 8) // FIRST) * FIRST


def reserved(tokens: int, page: int) -> int:
    """Return the places that :meth:`PaddedKVCache.reserve` makes for ``tokens``: small pages while a row is short.

    >>> [reserved(tokens, 128) for tokens in (14, 100, 128, 300)]
    [32, 128, 256, 384]
    """
    needed = tokens + tokens // 8
    unit = min(page, FIRST) if needed < page else page
    return -(-needed // unit) * unit


@dataclass(slots=True)
class _Layer:
    """KV of a layer: [P, K, p, d] of the prompts, [R, K, t, d] of the responses; ``rows`` counts the allocated rows."""

    prompt_keys: Tensor
    prompt_values: Tensor
    keys: Tensor
    values: Tensor
    rows: int


class PaddedKVCache:
    """KV cache of R rows over P prompts, in any order, each padded: prompts to the longest, responses to the longest.

    Plans (the prompt of each row, its written tokens) live on the host, which never waits for the device to plan a
    step; the device gets indices.

    Args:
        device: of keys and values.
        widths: [P] tokens of the prompts.
        rows: [P] number of rows of each prompt.
        prefix: tokens that all prompts begin with: :meth:`fill` gets them once.
    """

    def __init__(self, device: torch.device, widths: Sequence[int], rows: Sequence[int], prefix: int = 0) -> None:
        self.device = device
        self._prefix = prefix
        self.layers: dict[int, _Layer] = {}
        self.widths = torch.tensor(widths, dtype=torch.int64)
        """[P] tokens of the prompts, on the host."""
        self.owner = torch.arange(len(widths)).repeat_interleave(torch.tensor(rows, dtype=torch.int64))
        """[R] prompt of each row, on the host."""
        self.steps = 0
        """Tokens fed to a row that has been present from the beginning."""
        self.began = torch.zeros_like(self.owner)
        """[R] value of ``steps`` when a row joined, on the host."""
        self._oldest = 0
        self._own_mask: Tensor | None = None
        self._reserved = 0
        """Places of a row whose number stays until :meth:`reserve` is called again."""
        self.changes = object()
        """Another object after every change of rows."""
        self.regroup()

    def __len__(self) -> int:
        return len(self.owner)

    @property
    def width(self) -> int:
        """Tokens of the longest prompt plus those of the longest response."""
        return self._longest_prompt + self._most_written

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values, including free and empty places."""
        total = 0
        for layer in self.layers.values():
            total += layer.prompt_keys.nbytes + layer.prompt_values.nbytes
            row = layer.keys[:1].nbytes + layer.values[:1].nbytes
            total += row * layer.rows
        return total

    @property
    def _longest_prompt(self) -> int:
        return int(self.widths.max())

    @property
    def _most_written(self) -> int:
        return self.steps - int(self.began.min())

    @property
    def _tokens_held(self) -> int:
        return int(self.widths.sum()) + int((self.steps - self.began).sum())

    def padding_with(self, other: PaddedKVCache) -> tuple[int, int]:
        """Return the empty places if both caches were merged, and all places then, in tokens."""
        prompts = len(self.widths) + len(other.widths)
        rows = len(self) + len(other)
        longest_prompt = max(self._longest_prompt, other._longest_prompt)
        most_written = max(self._most_written, other._most_written)
        places = prompts * longest_prompt + rows * most_written
        return places - self._tokens_held - other._tokens_held, places

    def fill(self, layer: int, key: Tensor, value: Tensor, starts: Sequence[int]) -> None:
        """Store keys and values [M, K, d] of packed prompts, which begin (after the prefix) at ``starts``."""
        keys, values = (x.new_zeros(len(self), x.shape[1], FIRST, x.shape[2]) for x in (key, value))
        prompt_keys, prompt_values = (self._side_by_side(x, starts) for x in (key, value))
        self.layers[layer] = _Layer(prompt_keys, prompt_values, keys, values, len(self))

    def absorb(self, other: PaddedKVCache) -> None:
        """Append the rows and prompts of another cache."""
        self.owner = torch.cat([self.owner, other.owner + len(self.widths)])
        self.began = torch.cat([self.began, other.began + (self.steps - other.steps)])
        self.widths = torch.cat([self.widths, other.widths])
        for number, appended in other.layers.items():
            layer = self.layers[number]
            layer.prompt_keys = _stack(layer.prompt_keys, appended.prompt_keys)
            layer.prompt_values = _stack(layer.prompt_values, appended.prompt_values)
            layer.keys = _stack(layer.keys, appended.keys)
            layer.values = _stack(layer.values, appended.values)
            layer.rows = len(layer.keys)
        other.layers = {}
        self.regroup()

    def write(self) -> None:
        """Prepare the next call of :meth:`decode`, with one token for every row."""
        self._tokens = self.steps + 1 - self._oldest
        self._own_mask = None
        if self._uneven is not None:
            self._written = self.steps - self._uneven
            outside = torch.arange(self._tokens, device=self.device) > self._written.unsqueeze(1)
            self._own_mask = _minus_infinity(outside)[:, None]

    @property
    def room(self) -> bool:
        """True if the next token of every row has a place among the reserved ones."""
        return self.steps + 1 - self._oldest <= self._reserved

    def reserve(self, page: int) -> None:
        """Make room for an eighth more tokens than there are, in whole pages."""
        self._reserved = reserved(self.steps + 1 - self._oldest, page)
        for layer in self.layers.values():
            self._widen(layer, self._reserved)
        self._now = torch.full((), self.steps, device=self.device)
        self._began = self._there(self.began)

    def tick(self) -> None:
        """Write the number of steps to the device, where :meth:`write_static` reads it."""
        self._now.fill_(self.steps)

    def write_static(self) -> None:
        """Prepare :meth:`decode` over all reserved places: the same operations at every step, for a CUDA graph."""
        self._tokens = self._reserved
        self._written = self._now - self._began
        outside = torch.arange(self._tokens, device=self.device) > self._written.unsqueeze(1)
        self._own_mask = _minus_infinity(outside)[:, None]

    def keep(self, rows: Tensor) -> None:
        """Keep only these rows (on the host), in this order, and the prompts they need.

        A row that keeps its place costs nothing, unless memory is freed.
        """
        self.owner = self.owner[rows]
        self.began = self.began[rows]
        prompts, self.owner = torch.unique(self.owner, return_inverse=True)
        whole = len(prompts) == len(self.widths)
        self.widths = self.widths[prompts]
        width = int(self.widths.max()) if len(prompts) else 0
        places = (rows != torch.arange(len(rows))).nonzero().squeeze(1)
        moved = self._there(places)
        source = self._there(rows[places])
        prompts = self._there(prompts)
        written = self.steps - int(self.began.min()) if len(rows) else 0
        for layer in self.layers.values():
            for cached in (layer.keys, layer.values):
                cached.index_copy_(0, moved, cached.index_select(0, source))
            layer.keys = layer.keys[: len(rows)]
            layer.values = layer.values[: len(rows)]
            self._give_back(layer, min(layer.keys.shape[2], capacity(written + 1)))
            if not whole:
                layer.prompt_keys = layer.prompt_keys[:, :, :width].index_select(0, prompts)
                layer.prompt_values = layer.prompt_values[:, :, :width].index_select(0, prompts)
        self.regroup()

    def _give_back(self, layer: _Layer, tokens: int) -> None:
        """Shrink the capacity to ``tokens`` per row, if the present one is much too large."""
        if len(self.owner) * tokens < NEEDED * layer.rows * layer.keys.shape[2]:
            layer.keys = layer.keys[:, :, :tokens].clone(memory_format=torch.contiguous_format)
            layer.values = layer.values[:, :, :tokens].clone(memory_format=torch.contiguous_format)
            layer.rows = len(self.owner)

    def decode(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """Store keys and values [R, K, d], then attend with [R, H, d] over each row's tokens; returns [R, H, d]."""
        held = self.layers[layer]
        rows, heads, size = key.shape
        self._append(held, key, value)
        own_keys, own_values = (x.flatten(0, 1)[:, : self._tokens] for x in (held.keys, held.values))
        prompt_keys = held.prompt_keys.flatten(0, 1)
        prompt_values = held.prompt_values.flatten(0, 1)
        into, back = self._places_of(heads)
        q = (query if scaling == 1.0 else query * scaling).reshape(rows * heads, -1, size)
        shared = q.shape[1]
        width = prompt_keys.shape[1]

        def group(x: Tensor) -> Tensor:
            """Gather the vectors of rows by prompt: one product with a prompt's keys serves all its rows."""
            return x.index_select(0, into).view(len(prompt_keys), -1, x.shape[2])

        def ungroup(x: Tensor) -> Tensor:
            return x.view(-1, shared, x.shape[2]).index_select(0, back)

        row_scores = torch.bmm(q, own_keys.transpose(1, 2))
        if self._own_mask is not None:
            mask = self._own_mask.to(row_scores.dtype)
            row_scores = row_scores.view(rows, -1, self._tokens).add_(mask).view_as(row_scores)
        prompt_scores = torch.bmm(group(q), prompt_keys.transpose(1, 2))
        if self._prompt_mask is not None:
            mask = self._prompt_mask.to(prompt_scores.dtype)
            prompt_scores = prompt_scores.view(len(self.widths), -1, width).add_(mask).view_as(prompt_scores)
        scores = torch.cat([ungroup(prompt_scores), row_scores], dim=-1)
        weights = torch.softmax(scores, dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(value.dtype)
        out = ungroup(torch.bmm(group(weights[..., :width]), prompt_values))
        return out.add_(_weighted(weights[..., width:], own_values)).view(rows, -1, size)

    def _append(self, layer: _Layer, key: Tensor, value: Tensor) -> None:
        if self._tokens > layer.keys.shape[2]:
            self._widen(layer, capacity(self._tokens))
        if self._own_mask is None:
            layer.keys[:, :, self._tokens - 1] = key
            layer.values[:, :, self._tokens - 1] = value
        else:
            layer.keys[self._rows, :, self._written] = key
            layer.values[self._rows, :, self._written] = value

    @staticmethod
    def _widen(layer: _Layer, tokens: int) -> None:
        """Give every row at least ``tokens`` places."""
        if tokens > layer.keys.shape[2]:
            layer.keys = _widened(layer.keys, tokens)
            layer.values = _widened(layer.values, tokens)
            layer.rows = len(layer.keys)

    def regroup(self) -> None:
        """Recompute the [P, largest group] arrangement of rows; call it after they change."""
        self.changes = object()
        self._own_mask = None
        self._reserved = 0
        self._prompt_mask: Tensor | None = None
        self._places: dict[int, tuple[Tensor, Tensor]] = {}
        self._tokens = 0
        self._uneven: Tensor | None = None
        if not len(self.owner):
            return
        self._oldest = int(self.began.min())
        if self._oldest < int(self.began.max()):
            self._uneven = self._there(self.began)
        self._rows = torch.arange(len(self.owner), device=self.device)
        self._sizes = torch.bincount(self.owner, minlength=len(self.widths))
        self._largest = int(self._sizes.max())
        longest = int(self.widths.max())
        if int(self.widths.min()) < longest:
            outside = torch.arange(longest, device=self.device) >= self._there(self.widths).unsqueeze(1)
            self._prompt_mask = _minus_infinity(outside)[:, None]

    def _there(self, x: Tensor) -> Tensor:
        """Move to the device without waiting for it."""
        return x.to(self.device, non_blocking=True)

    def _places_of(self, heads: int) -> tuple[Tensor, Tensor]:
        """Return indices of the [R * K] vectors that fill a [P, K, largest group] rectangle, and of the rows in it.

        A prompt with fewer rows repeats its last one.
        """
        if heads not in self._places:
            order = torch.argsort(self.owner, stable=True)  # rows by prompt
            first = self._sizes.cumsum(0) - self._sizes
            rank = torch.minimum(torch.arange(self._largest), self._sizes.unsqueeze(1) - 1)
            head = torch.arange(heads)
            into = order[first.unsqueeze(1) + rank].unsqueeze(1) * heads + head.unsqueeze(1)
            place_in_group = torch.empty_like(order)
            place_in_group[order] = torch.arange(len(order)) - first[self.owner[order]]
            back = (self.owner.unsqueeze(1) * heads + head) * self._largest + place_in_group.unsqueeze(1)
            self._places[heads] = self._there(into.flatten()), self._there(back.flatten())
        return self._places[heads]

    def _side_by_side(self, packed: Tensor, starts: Sequence[int]) -> Tensor:
        """Unpack prompts [M, K, d] to [P, K, p, d]; zero beyond a shorter prompt."""
        widths = self.widths.tolist()
        out = packed.new_zeros(len(widths), packed.shape[1], max(widths), packed.shape[2])
        out[:, :, : self._prefix] = packed[: self._prefix].transpose(0, 1)
        for i, (start, width) in enumerate(zip(starts, widths, strict=True)):
            prompt = packed[start : start + width - self._prefix]
            out[i, :, self._prefix : width] = prompt.transpose(0, 1)
        return out


def _weighted(weights: Tensor, values: Tensor) -> Tensor:
    """Return the weighted sums [B, g, d] of values [B, t, d] by weights [B, g, t]."""
    if weights.shape[1] == 1 and values.shape[1] * values.shape[2] < SMALL_PRODUCT:
        return (weights.transpose(1, 2) * values).sum(1, keepdim=True)
    return torch.bmm(weights, values)


def _widened(x: Tensor, length: int) -> Tensor:
    """Widen [R, K, t, d] to ``length`` tokens, padding with zeros."""
    out = x.new_zeros(*x.shape[:2], length, x.shape[3])
    out[:, :, : x.shape[2]] = x
    return out


def _stack(a: Tensor, b: Tensor) -> Tensor:
    """Stack [R, K, n, d] and [S, K, m, d] to [R + S, K, max(n, m), d]."""
    length = max(a.shape[2], b.shape[2])
    out = a.new_zeros(a.shape[0] + b.shape[0], a.shape[1], length, a.shape[3])
    out[: a.shape[0], :, : a.shape[2]] = a
    out[a.shape[0] :, :, : b.shape[2]] = b
    return out


def _minus_infinity(outside: Tensor) -> Tensor:
    return torch.zeros(outside.shape, device=outside.device).masked_fill(outside, -torch.inf)
