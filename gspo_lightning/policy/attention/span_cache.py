"""Keys and values of rows of any prompts in one store per layer, with starts and lengths as data on the device."""

from __future__ import annotations

import itertools
from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gspo_lightning.policy.attention.interface import Plan
from gspo_lightning.policy.attention.plans import attention_plan
from gspo_lightning.policy.attention.spans import Attend, Join, Span, joined

SPARE = 32
"""A store that is too small grows by a 32nd more than it needs: growing invalidates recorded steps."""


class Places:
    """Allocator of consecutive places in a store, on the host; place 0 is never given away."""

    def __init__(self) -> None:
        self.size = 1
        """Places of the store so far."""
        self._free: list[tuple[int, int]] = []
        """(start, length) of free places, by start."""

    def take(self, count: int) -> int:
        """Return the first of ``count`` consecutive places; the store becomes larger if no gap is large enough."""
        for i, (start, length) in enumerate(self._free):
            if length >= count:
                self._free[i : i + 1] = [(start + count, length - count)] if length > count else []
                return start
        start = self.size
        if self._free and sum(self._free[-1]) == self.size:  # a gap at the end is made larger
            start, _ = self._free.pop()
        self.size = start + count
        return start

    def give(self, start: int, count: int) -> None:
        """Free places, and merge them with free neighbours."""
        insort(self._free, (start, count))
        merged: list[tuple[int, int]] = []
        for first, length in self._free:
            if merged and sum(merged[-1]) == first:
                merged[-1] = (merged[-1][0], merged[-1][1] + length)
            else:
                merged.append((first, length))
        self._free = merged

    def extend(self, size: int) -> None:
        """Add free places up to ``size`` in all."""
        if size > self.size:
            start = self.size
            self.size = size
            self.give(start, size - start)


@dataclass(slots=True, eq=False)
class _Prompt:
    start: int
    width: int
    rows: int


@dataclass(slots=True)
class _Row:
    prompt: _Prompt
    start: int
    room: int


@dataclass(slots=True)
class _Entering:
    """Prompts being prefilled: where the packed tokens ``source`` go in the store, ``target``."""

    plan: Plan
    source: Tensor
    target: Tensor


class SpanCache:
    """KV cache of R rows over prompts of any lengths, as a :class:`gspo_lightning.policy.attention.Plan`.

    Rows and prompts never move: a row that leaves gives its places to others. All tensors keep their addresses until
    ``version`` changes.

    Args:
        device: of keys and values.
        most: rows at the same time.
        attend: attends over one span.
        join: joins two spans.
    """

    def __init__(self, device: torch.device, most: int, attend: Attend, join: Join = joined) -> None:
        self.device = device
        self.attend_span = attend
        self.join = join
        self.longest = 0
        self.stores: dict[int, Tensor] = {}
        """Layer -> keys and values [T, 2, K, d]."""
        self.version = 0
        """Changes when a tensor gets another address, or a bound grows."""
        self.active = 0
        """Rows of the next step: the present ones, and idle ones behind them."""
        self._bounds = [1, 1]
        self._starts = torch.zeros(2, most + 1, dtype=torch.int32, device=device)
        self._lengths = torch.zeros(2, most, dtype=torch.int32, device=device)
        self._before = torch.zeros(most, dtype=torch.int64, device=device)
        """[most] the place before a row's first one: a row with s tokens, the new one included, writes at s more."""
        self._queries: dict[int, Tensor] = {}
        self._place = self._before
        self._places = Places()
        self._rows: list[_Row] = []
        self._entering: _Entering | None = None
        self._push(torch.zeros(0, dtype=torch.int32, device=device))

    def __len__(self) -> int:
        """Number of rows."""
        return len(self._rows)

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values, including free places."""
        return sum(store.nbytes for store in self.stores.values())

    @property
    def seen(self) -> Tensor:
        """[most] int32: own tokens of each row, the next one included; 1 for idle rows."""
        return self._lengths[0]

    def clear(self) -> None:
        """Remove all rows; the store stays."""
        size = self._places.size
        self._places = Places()
        self._places.extend(size)
        self._rows = []
        self.longest = 0
        self._entering = None
        self._push(self.seen[:0])

    def enter(self, widths: Sequence[int], rows: Sequence[int], room: Sequence[int], prefix: int = 0) -> None:
        """Prepare a prefill of new prompts, packed one after another.

        Args:
            widths: [P] tokens of the prompts, the prefix included.
            rows: [P] number of rows of each.
            room: [sum(rows)] tokens that each row may get.
            prefix: tokens that all prompts begin with; they come first, once.
        """
        lengths = [width - prefix for width in widths]
        starts = list(itertools.accumulate(lengths[:-1], initial=prefix))
        segments = [*([(0, prefix)] if prefix else []), *zip(starts, lengths, strict=True)]
        plan = attention_plan(segments, [], max(widths), self.device, (), prefix)
        old_size = self._places.size
        room_left = iter(room)
        source = []  # packed tokens of each prompt, the shared prefix repeated
        target = []  # their places in the store
        new: list[_Row] = []
        for width, count, start in zip(widths, rows, starts, strict=True):
            prompt = _Prompt(self._places.take(width), width, count)
            source += [torch.arange(prefix), torch.arange(start, start + width - prefix)]
            target.append(torch.arange(prompt.start, prompt.start + width))
            for _ in range(count):
                tokens = next(room_left) + 1  # a row that has ended may be fed once more
                new.append(_Row(prompt, self._places.take(tokens), tokens))
        if self._places.size > old_size and self.stores:
            self._places.extend(self._places.size + self._places.size // SPARE)
        self._entering = _Entering(plan, self._there(torch.cat(source)), self._there(torch.cat(target)))
        row_lengths = torch.cat([self.seen[: len(self)], self.seen.new_ones(len(new))])
        self._rows += new
        self.longest = max(self.longest, *widths)
        row_bound, prompt_bound = self._bounds
        bounds = [max(row_bound, *(row.room for row in new)), max(prompt_bound, *widths)]
        if bounds != self._bounds:
            self._bounds = bounds
            self.version += 1
        self._push(row_lengths)

    def write(self, active: int | None = None) -> None:
        """Prepare a step of the first ``active`` rows, all by default: one token for each."""
        self._entering = None
        self.active = len(self) if active is None else active
        self._place = self._before[: self.active] + self.seen[: self.active]

    def advance(self, moved: Tensor) -> None:
        """Count one more token for the rows [active] of the last step where ``moved`` is 1 or True."""
        self.seen[: self.active].add_(moved)

    def keep(self, rows: Tensor) -> None:
        """Keep only these rows (on the host), in this order, and the prompts they need."""
        stay = rows.tolist()
        kept = set(stay)
        for i, row in enumerate(self._rows):
            if i not in kept:
                self._places.give(row.start, row.room)
                row.prompt.rows -= 1
                if not row.prompt.rows:
                    self._places.give(row.prompt.start, row.prompt.width)
        self._rows = [self._rows[i] for i in stay]
        self._push(self.seen.index_select(0, self._there(rows)))

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """Prefill: store keys and values [M, K, d], and attend with [M, H, d]; returns [M, H, d]."""
        assert self._entering is not None
        store = self._store(layer, key)
        new = torch.stack([key, value], dim=1).index_select(0, self._entering.source)
        store.index_copy_(0, self._entering.target, new.to(store.dtype))
        return self._entering.plan.attend(layer, query, key, value, scaling)

    def decode(self, layer: int, qkv: Tensor, scaling: float) -> Tensor:
        """Store the keys and values of ``qkv`` [R, n + 2, K, d], and attend; returns [R, n, K, d]."""
        store = self.stores[layer]
        store.index_copy_(0, self._place, qkv[:, -2:])
        row_span, prompt_span = (
            Span(self._starts[i, : self.active + 1], self._lengths[i, : self.active], self._bounds[i]) for i in (0, 1)
        )
        queries = self._multiples(qkv.shape[1])[: self.active + 1]
        row_out, row_lse = self.attend_span(qkv, store, row_span, queries, scaling)
        return self.join(row_out, row_lse, *self.attend_span(qkv, store, prompt_span, queries, scaling))

    def _store(self, layer: int, key: Tensor) -> Tensor:
        """Return the store of a layer, made or grown to all places."""
        held = self.stores.get(layer)
        if held is None or len(held) < self._places.size:
            store = key.new_zeros(self._places.size, 2, *key.shape[1:])
            if held is not None:
                store[: len(held)] = held
            self.stores[layer] = store
            self.version += 1
        return self.stores[layer]

    def _multiples(self, slots: int) -> Tensor:
        if slots not in self._queries:
            every = torch.arange(self._starts.shape[1], dtype=torch.int32) * slots
            self._queries[slots] = self._there(every)
        return self._queries[slots]

    def _push(self, seen: Tensor) -> None:
        """Write spans of all rows to the device, and make the places behind them idle: nothing seen, place 0."""
        count = len(self._rows)
        most = self._before.shape[0]
        if count > most:
            raise ValueError(f"{count} rows in a cache of at most {most}")
        table = torch.zeros(4, most + 1, dtype=torch.int64)
        table[3] = -1
        if count:
            spans = [(row.start, row.prompt.start, row.prompt.width, row.start - 1) for row in self._rows]
            table[:, :count] = torch.tensor(spans).T
        there = self._there(table)
        self._starts.copy_(there[:2])
        self._lengths[1].copy_(there[2, :most])
        self._before.copy_(there[3, :most])
        row_lengths = seen.clone()
        self._lengths[0].fill_(1)
        self._lengths[0, :count].copy_(row_lengths)

    def _there(self, x: Tensor) -> Tensor:
        return x.to(self.device, non_blocking=True)
