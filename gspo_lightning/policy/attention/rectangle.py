"""Keys and values of rows that are padded to each other while responses are being sampled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["FIRST", "Rectangle", "room"]

FIRST = 32
"""Tokens of a page: what a row has places for is a multiple of it."""

SMALL_PRODUCT = 400
"""Below so many multiplications PyTorch's batched product on a CPU is a plain loop, slower than a larger one."""

NEEDED = 0.75
"""Share of the places that rows need, below which the others are given back: that copies every row."""


def room(tokens: int) -> int:
    """Tokens of a row that have places when it needs ``tokens`` of them: an eighth more, in pages."""
    return -(-(tokens + tokens // 8) // FIRST) * FIRST


@dataclass(slots=True)
class _Layer:
    """[P, K, p, d] of the prompts, [R, K, t, d] of what the rows have written, and rows that there is memory for."""

    prompt_keys: Tensor
    prompt_values: Tensor
    keys: Tensor
    values: Tensor
    rows: int


class Rectangle:
    """R rows over P prompts, in any order; prompts are padded to the longest, and so is what the rows have written.

    What is planned (who belongs to which prompt, how much each row has written) is known to the host, which never waits
    for the device to plan a step; the device gets indices.

    Args:
        device: of keys and values.
        widths: [P] tokens of the prompts.
        rows: [P] of each prompt.
    """

    def __init__(self, device: torch.device, widths: Sequence[int], rows: Sequence[int]) -> None:
        self.device = device
        self.layers: dict[int, _Layer] = {}
        self.widths = torch.tensor(widths, dtype=torch.int64)
        """[P] tokens of the prompts, on the host."""
        self.owner = torch.arange(len(widths)).repeat_interleave(torch.tensor(rows, dtype=torch.int64))
        """[R] the prompt of each row, on the host."""
        self.steps = 0
        """Tokens that were fed to a row that has been here from the beginning."""
        self.began = torch.zeros_like(self.owner)
        """[R] ``steps`` when a row joined, on the host."""
        self._oldest = 0
        self._own_mask: Tensor | None = None
        self.regroup()

    def __len__(self) -> int:
        return len(self.owner)

    @property
    def width(self) -> int:
        """Tokens of the longest prompt and of the row that has written most."""
        return self._longest_prompt + self._most_written

    @property
    def nbytes(self) -> int:
        """Of keys and values, with the places that are free or empty."""
        found = 0
        for layer in self.layers.values():
            found += layer.prompt_keys.nbytes + layer.prompt_values.nbytes
            row = layer.keys[:1].nbytes + layer.values[:1].nbytes
            found += row * layer.rows
        return found

    @property
    def _longest_prompt(self) -> int:
        return int(self.widths.max())

    @property
    def _most_written(self) -> int:
        return self.steps - int(self.began.min())

    def padding_with(self, other: Rectangle) -> tuple[int, int]:
        """Tokens that would stay empty if both were one, and all that there would be places for."""
        both = (self, other)
        prompts = sum(len(one.widths) for one in both) * max(one._longest_prompt for one in both)
        places = prompts + sum(len(one) for one in both) * max(one._most_written for one in both)
        held = sum(int(one.widths.sum()) + int((one.steps - one.began).sum()) for one in both)
        return places - held, places

    def fill(self, layer: int, key: Tensor, value: Tensor, starts: Sequence[int]) -> None:
        """Keys and values [M, K, d] of packed prompts, which begin at ``starts``."""
        keys, values = (x.new_zeros(len(self), x.shape[1], FIRST, x.shape[2]) for x in (key, value))
        prompt_keys, prompt_values = (self._side_by_side(x, starts) for x in (key, value))
        self.layers[layer] = _Layer(prompt_keys, prompt_values, keys, values, len(self))

    def absorb(self, other: Rectangle) -> None:
        """Take the rows and prompts of another one in, behind those that are here."""
        self.owner = torch.cat([self.owner, other.owner + len(self.widths)])
        self.began = torch.cat([self.began, other.began + (self.steps - other.steps)])
        self.widths = torch.cat([self.widths, other.widths])
        for number, theirs in other.layers.items():
            ours = self.layers[number]
            ours.prompt_keys = _stack(ours.prompt_keys, theirs.prompt_keys)
            ours.prompt_values = _stack(ours.prompt_values, theirs.prompt_values)
            ours.keys, ours.values = _stack(ours.keys, theirs.keys), _stack(ours.values, theirs.values)
            ours.rows = len(ours.keys)
        other.layers = {}
        self.regroup()

    def write(self) -> None:
        """The next call of :meth:`decode` holds one token for every row."""
        self._tokens = self.steps + 1 - self._oldest
        self._own_mask = None
        if self._uneven is not None:
            self._written = self.steps - self._uneven
            outside = torch.arange(self._tokens, device=self.device) > self._written.unsqueeze(1)
            self._own_mask = _minus_infinity(outside)[:, None]

    def keep(self, rows: Tensor) -> None:
        """Drop all rows but these (on the host), which stand in this order then, and prompts that no row needs now.

        A row that keeps its place costs nothing, unless places are given back.
        """
        self.owner, self.began = self.owner[rows], self.began[rows]
        prompts, self.owner = torch.unique(self.owner, return_inverse=True)
        whole = len(prompts) == len(self.widths)
        self.widths = self.widths[prompts]
        width = int(self.widths.max()) if len(prompts) else 0
        places = (rows != torch.arange(len(rows))).nonzero().squeeze(1)
        moved, source, prompts = self._there(places), self._there(rows[places]), self._there(prompts)
        written = self.steps - int(self.began.min()) if len(rows) else 0
        for layer in self.layers.values():
            for cached in (layer.keys, layer.values):
                cached.index_copy_(0, moved, cached.index_select(0, source))
            layer.keys, layer.values = layer.keys[: len(rows)], layer.values[: len(rows)]
            self._give_back(layer, min(layer.keys.shape[2], room(written + 1)))
            if not whole:
                layer.prompt_keys = layer.prompt_keys[:, :, :width].index_select(0, prompts)
                layer.prompt_values = layer.prompt_values[:, :, :width].index_select(0, prompts)
        self.regroup()

    def _give_back(self, layer: _Layer, tokens: int) -> None:
        """Move rows that hold ``tokens`` at most to a place of their size, if their own is much too large."""
        if len(self.owner) * tokens < NEEDED * layer.rows * layer.keys.shape[2]:
            layer.keys = layer.keys[:, :, :tokens].clone(memory_format=torch.contiguous_format)
            layer.values = layer.values[:, :, :tokens].clone(memory_format=torch.contiguous_format)
            layer.rows = len(self.owner)

    def decode(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """[R, H, d] over all that the rows see to [R, H, d]; keys and values [R, K, d] are kept first."""
        held = self.layers[layer]
        rows, heads, size = key.shape
        self._append(held, key, value)
        own_keys, own_values = (x.flatten(0, 1)[:, : self._tokens] for x in (held.keys, held.values))
        prompt_keys, prompt_values = held.prompt_keys.flatten(0, 1), held.prompt_values.flatten(0, 1)
        into, back = self._places_of(heads)
        q = (query if scaling == 1.0 else query * scaling).reshape(rows * heads, -1, size)
        shared, width = q.shape[1], prompt_keys.shape[1]

        def group(x: Tensor) -> Tensor:
            return x.index_select(0, into).view(len(prompt_keys), -1, x.shape[2])

        def ungroup(x: Tensor) -> Tensor:
            return x.view(-1, shared, x.shape[2]).index_select(0, back)

        own = torch.bmm(q, own_keys.transpose(1, 2))
        if self._own_mask is not None:
            own = own.view(rows, -1, self._tokens).add_(self._own_mask.to(own.dtype)).view_as(own)
        there = torch.bmm(group(q), prompt_keys.transpose(1, 2))
        if self._prompt_mask is not None:
            there = there.view(len(self.widths), -1, width).add_(self._prompt_mask.to(there.dtype)).view_as(there)
        scores = torch.cat([ungroup(there), own], dim=-1)
        weights = torch.softmax(scores, dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(value.dtype)
        out = ungroup(torch.bmm(group(weights[..., :width]), prompt_values))
        return out.add_(_weighted(weights[..., width:], own_values)).view(rows, -1, size)

    def _append(self, layer: _Layer, key: Tensor, value: Tensor) -> None:
        if self._tokens > layer.keys.shape[2]:
            layer.keys = _widened(layer.keys, room(self._tokens))
            layer.values = _widened(layer.values, room(self._tokens))
            layer.rows = len(layer.keys)
        if self._own_mask is None:
            layer.keys[:, :, self._tokens - 1], layer.values[:, :, self._tokens - 1] = key, value
        else:
            layer.keys[self._rows, :, self._written], layer.values[self._rows, :, self._written] = key, value

    def regroup(self) -> None:
        """Rows as a [P, largest group] rectangle; needed after they have changed."""
        self._own_mask = None
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
        """On the device, without waiting for it."""
        return x.to(self.device, non_blocking=True)

    def _places_of(self, heads: int) -> tuple[Tensor, Tensor]:
        """Of [R * K] vectors, which ones stand in a [P, K, largest group] rectangle; and of it, which are the rows'.

        Where a prompt has fewer rows than others its last one stands in for them.
        """
        if heads not in self._places:
            order = torch.argsort(self.owner, stable=True)  # rows by prompt
            first = self._sizes.cumsum(0) - self._sizes
            rank = torch.minimum(torch.arange(self._largest), self._sizes.unsqueeze(1) - 1)
            head = torch.arange(heads)
            into = order[first.unsqueeze(1) + rank].unsqueeze(1) * heads + head.unsqueeze(1)
            own = torch.empty_like(order)
            own[order] = torch.arange(len(order)) - first[self.owner[order]]
            back = (self.owner.unsqueeze(1) * heads + head) * self._largest + own.unsqueeze(1)
            self._places[heads] = self._there(into.flatten()), self._there(back.flatten())
        return self._places[heads]

    def _side_by_side(self, packed: Tensor, starts: Sequence[int]) -> Tensor:
        """[M, K, d] of packed prompts to [P, K, p, d]; zero where a prompt is shorter."""
        widths = self.widths.tolist()
        out = packed.new_zeros(len(widths), packed.shape[1], max(widths), packed.shape[2])
        for i, (start, width) in enumerate(zip(starts, widths, strict=True)):
            out[i, :, :width] = packed[start : start + width].transpose(0, 1)
        return out


def _weighted(weights: Tensor, values: Tensor) -> Tensor:
    """[B, g, t] weights of [B, t, d] values: [B, g, d]."""
    if weights.shape[1] == 1 and values.shape[1] * values.shape[2] < SMALL_PRODUCT:
        return (weights.transpose(1, 2) * values).sum(1, keepdim=True)
    return torch.bmm(weights, values)


def _widened(x: Tensor, length: int) -> Tensor:
    """[R, K, t, d] with places for more tokens."""
    out = x.new_zeros(*x.shape[:2], length, x.shape[3])
    out[:, :, : x.shape[2]] = x
    return out


def _stack(a: Tensor, b: Tensor) -> Tensor:
    """[R, K, n, d] and [S, K, m, d] to [R + S, K, max(n, m), d]."""
    length = max(a.shape[2], b.shape[2])
    out = a.new_zeros(a.shape[0] + b.shape[0], a.shape[1], length, a.shape[3])
    out[: a.shape[0], :, : a.shape[2]] = a
    out[a.shape[0] :, :, : b.shape[2]] = b
    return out


def _minus_infinity(outside: Tensor) -> Tensor:
    return torch.zeros(outside.shape, device=outside.device).masked_fill(outside, -torch.inf)
