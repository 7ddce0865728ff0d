"""Keys and values while responses are being sampled: each prompt once for all its responses, no copies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gspo_lightning.policy.attention.interface import Plan
from gspo_lightning.policy.attention.plans import attention_plan

__all__ = ["FIRST", "GroupCache"]

FIRST = 32
"""Tokens per row that are allocated at first; doubled whenever they are used up."""


SMALL_PRODUCT = 400
"""Below so many multiplications PyTorch's batched product on a CPU is a plain loop, slower than a larger one."""


@dataclass(slots=True)
class _Layer:
    """[P, K, p, d] of the prompts and [R, K, t, d] of what the rows have written."""

    prompt_keys: Tensor
    prompt_values: Tensor
    keys: Tensor
    values: Tensor


@dataclass(slots=True)
class _Entering:
    """Prompts that are being prefilled."""

    starts: list[int]
    widths: list[int]
    rows: int
    plan: Plan


class GroupCache:
    """A plan (see :class:`gspo_lightning.policy.attention.Plan`) for R rows over P prompts, in any order.

    A forward pass either prefills new prompts (after :meth:`enter`) or feeds one token per row (after :meth:`write`).
    What is planned (who belongs to which prompt, how much each row has written) is known to the host, which never waits
    for the device to plan a step; the device gets indices.
    """

    def __init__(self, device: torch.device) -> None:
        self.longest = 0
        self.device = device
        self.layers: dict[int, _Layer] = {}
        self.widths = torch.zeros(0, dtype=torch.int64)
        """[P] tokens of the prompts, on the host."""
        self.owner = torch.zeros(0, dtype=torch.int64)
        """[R] the prompt of each row, on the host."""
        self.steps = 0
        """Tokens that were fed to a row that has been here from the beginning."""
        self.began = torch.zeros(0, dtype=torch.int64)
        """[R] ``steps`` when a row joined, on the host."""
        self._oldest = 0
        self._entering: _Entering | None = None
        self._own_mask: Tensor | None = None
        self._regroup()

    # what the decoder says ---------------------------------------------------------------------------------------

    def enter(self, widths: Sequence[int], rows: Sequence[int]) -> None:
        """The next forward pass holds new prompts of these widths, packed one after another, for so many rows each."""
        starts = [sum(widths[:i]) for i in range(len(widths))]
        plan = attention_plan(list(zip(starts, widths, strict=True)), [], max(widths), self.device)
        self._entering = _Entering(starts, list(widths), sum(rows), plan)
        self.longest = max(self.longest, *widths)
        slots = torch.arange(len(widths)) + len(self.widths)
        self.widths = torch.cat([self.widths, torch.tensor(widths)])
        self.owner = torch.cat([self.owner, slots.repeat_interleave(torch.tensor(rows))])
        self.began = torch.cat([self.began, self.began.new_full((sum(rows),), self.steps)])

    def write(self) -> None:
        """The next forward pass holds one token for every row."""
        if self._entering is not None:
            self._entering = None
            self._regroup()
        self.longest += 1
        self._tokens = self.steps + 1 - self._oldest
        self._own_mask = None
        if self._uneven is not None:
            self._written = self.steps - self._uneven
            outside = torch.arange(self._tokens, device=self.device) > self._written.unsqueeze(1)
            self._own_mask = _minus_infinity(outside)[:, None]

    def keep(self, rows: Tensor) -> None:
        """Drop all rows but these (on the host), which stand in this order then, and prompts that no row needs now.

        A row that keeps its place costs nothing.
        """
        self._entering = None
        self.owner, self.began = self.owner[rows], self.began[rows]
        prompts, self.owner = torch.unique(self.owner, return_inverse=True)
        whole = len(prompts) == len(self.widths)
        self.widths = self.widths[prompts]
        width = int(self.widths.max()) if len(prompts) else 0
        places = (rows != torch.arange(len(rows))).nonzero().squeeze(1)
        moved, source, prompts = self._there(places), self._there(rows[places]), self._there(prompts)
        for layer in self.layers.values():
            for cached in (layer.keys, layer.values):
                cached.index_copy_(0, moved, cached.index_select(0, source))
            layer.keys, layer.values = layer.keys[: len(rows)], layer.values[: len(rows)]
            if not whole:
                layer.prompt_keys = layer.prompt_keys[:, :, :width].index_select(0, prompts)
                layer.prompt_values = layer.prompt_values[:, :, :width].index_select(0, prompts)
        self._regroup()

    def advance(self) -> None:
        """Every row has one token more."""
        self.steps += 1

    # attention ---------------------------------------------------------------------------------------------------

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """[M, H, d] over [M, K, d] to [M, H, d]; keys and values are kept."""
        if self._entering is not None:
            return self._prefill(self._entering, layer, query, key, value, scaling)
        return self._decode(self.layers[layer], query, key, value, scaling)

    def _prefill(self, new: _Entering, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        prompts = [_side_by_side(x, new) for x in (key, value)]
        room = key.new_zeros(new.rows, key.shape[1], FIRST, key.shape[2])
        before = self.layers.get(layer)
        if before is None:
            self.layers[layer] = _Layer(prompts[0], prompts[1], room, room.clone())
        else:
            before.prompt_keys, before.prompt_values = (
                _stack(a, b) for a, b in zip((before.prompt_keys, before.prompt_values), prompts, strict=True)
            )
            before.keys, before.values = _stack(before.keys, room), _stack(before.values, room)
        return new.plan.attend(layer, query, key, value, scaling)

    def _decode(self, layer: _Layer, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        rows, heads, size = key.shape
        self._append(layer, key, value)
        own_keys, own_values = (x.flatten(0, 1)[:, : self._tokens] for x in (layer.keys, layer.values))
        prompt_keys, prompt_values = layer.prompt_keys.flatten(0, 1), layer.prompt_values.flatten(0, 1)
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
            layer.keys, layer.values = (torch.cat([x, torch.zeros_like(x)], dim=2) for x in (layer.keys, layer.values))
        if self._own_mask is None:
            layer.keys[:, :, self._tokens - 1], layer.values[:, :, self._tokens - 1] = key, value
        else:
            layer.keys[self._rows, :, self._written], layer.values[self._rows, :, self._written] = key, value

    # rows by prompt ----------------------------------------------------------------------------------------------

    def _regroup(self) -> None:
        """Rows as a [P, largest group] rectangle."""
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


def _weighted(weights: Tensor, values: Tensor) -> Tensor:
    """[B, g, t] weights of [B, t, d] values: [B, g, d]."""
    if weights.shape[1] == 1 and values.shape[1] * values.shape[2] < SMALL_PRODUCT:
        return (weights.transpose(1, 2) * values).sum(1, keepdim=True)
    return torch.bmm(weights, values)


def _side_by_side(packed: Tensor, new: _Entering) -> Tensor:
    """[M, K, d] of packed prompts to [P, K, p, d]; zero where a prompt is shorter."""
    out = packed.new_zeros(len(new.widths), packed.shape[1], max(new.widths), packed.shape[2])
    for i, (start, width) in enumerate(zip(new.starts, new.widths, strict=True)):
        out[i, :, :width] = packed[start : start + width].transpose(0, 1)
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
