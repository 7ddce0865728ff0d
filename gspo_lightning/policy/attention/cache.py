"""KV cache during sampling: each prompt once for all its responses, without copies."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gspo_lightning.policy.attention.interface import Plan
from gspo_lightning.policy.attention.padded_kv_cache import PaddedKVCache
from gspo_lightning.policy.attention.plans import attention_plan

PADDING = 32 << 20
"""Bytes that may stay empty before rows of different lengths are kept apart, at the price of more kernels."""
SHARE = 0.25
"""Empty share, relative to the places in use, up to which rows are not kept apart."""


@dataclass(slots=True)
class _Part:
    """Padded cache, and the places of its rows [R] among all rows, on the host."""

    padded: PaddedKVCache
    places: Tensor


@dataclass(slots=True)
class _Entering:
    """Prompts being prefilled, and the starts of each new part's prompts."""

    plan: Plan
    parts: list[tuple[_Part, list[int]]]


class GroupCache:
    """KV cache of R rows over P prompts, in any order, as a :class:`gspo_lightning.policy.attention.Plan`.

    A forward pass either prefills new prompts (after :meth:`enter`) or feeds one token per row (after :meth:`write`).
    Rows of one part are padded to each other. Rows that join later, or have a prompt of another length, form their own
    part as long as padding them would take too much memory.

    Args:
        device: of keys and values.
        token_bytes: bytes of a token's keys and values in all layers; 0: rows are never kept apart.
    """

    def __init__(self, device: torch.device, token_bytes: int = 0) -> None:
        self.longest = 0
        self.device = device
        self.token_bytes = token_bytes
        self.parts: list[_Part] = []
        self._entering: _Entering | None = None
        self._order: tuple[list[Tensor], Tensor] | None = None
        """Rows of each part and the inverse permutation, on the device; None if one part has all rows in order."""

    def __len__(self) -> int:
        """Number of rows."""
        return sum(len(part.padded) for part in self._all())

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values, including free and empty places."""
        return sum(part.padded.nbytes for part in self._all())

    # what the decoder says ---------------------------------------------------------------------------------------

    def enter(
        self,
        widths: Sequence[int],
        rows: Sequence[int],
        blocks: Sequence[tuple[int, int]] = (),
        prefix: int = 0,
    ) -> None:
        """Prepare a prefill of new prompts, packed one after another.

        Args:
            widths: [P] tokens of the prompts, the prefix included.
            rows: [P] number of rows of each.
            blocks: (start, length) of tokens that see each other.
            prefix: tokens that all prompts begin with; they come first, once.
        """
        self._settle()
        lengths = [width - prefix for width in widths]
        starts = list(itertools.accumulate(lengths[:-1], initial=prefix))
        segments = [*([(0, prefix)] if prefix else []), *zip(starts, lengths, strict=True)]
        plan = attention_plan(segments, [], max(widths), self.device, blocks, prefix)
        first_rows = (torch.tensor([0, *rows]).cumsum(0) + len(self)).tolist()
        parts = []
        for prompts in self._apart(widths):
            padded = PaddedKVCache(self.device, [widths[i] for i in prompts], [rows[i] for i in prompts], prefix)
            places = torch.cat([torch.arange(first_rows[i], first_rows[i + 1]) for i in prompts])
            parts.append((_Part(padded, places), [starts[i] for i in prompts]))
        self._entering = _Entering(plan, parts)
        self.longest = max(self.longest, *widths)

    def write(self) -> None:
        """Prepare a forward pass with one token for every row."""
        if self._entering is not None:
            self._settle()
            self._together()
        self.longest += 1
        for part in self.parts:
            part.padded.write()

    @property
    def arrangement(self) -> object:
        """Equal as long as no row has left or joined; None while prompts are being prefilled."""
        return None if self._entering else [part.padded.changes for part in self.parts]

    @property
    def room(self) -> bool:
        """True if the next token of every row has a place among those of :meth:`reserve`."""
        return all(part.padded.room for part in self.parts)

    def reserve(self, page: int) -> None:
        """Make room for more tokens of every row, in whole pages."""
        for part in self.parts:
            part.padded.reserve(page)

    def write_static(self) -> None:
        """Prepare a forward pass over all reserved places, with one token at the place that :meth:`tick` has said."""
        for part in self.parts:
            part.padded.write_static()

    def tick(self) -> None:
        """Tell the device the place of the next token, instead of :meth:`write`."""
        self.longest += 1
        for part in self.parts:
            part.padded.tick()

    def keep(self, rows: Tensor) -> None:
        """Keep only these rows (on the host), in this order, and the prompts they need.

        A row that keeps its place costs nothing, unless much memory is freed.
        """
        self._settle()
        if len(self.parts) == 1 and self._order is None:
            self.parts[0].padded.keep(rows)
            self.parts[0].places = torch.arange(len(rows))
        else:
            new_place = torch.full((len(self),), -1)  # of each row; -1 if it leaves
            new_place[rows] = torch.arange(len(rows))
            for part in self.parts:
                part_places = new_place[part.places]
                stay = closed_up(part_places >= 0)
                part.padded.keep(stay)
                part.places = part_places[stay]
        self.parts = [part for part in self.parts if len(part.places)]
        self._together()

    def advance(self) -> None:
        """Count one more token for every row."""
        for part in self.parts:
            part.padded.steps += 1

    # attention ---------------------------------------------------------------------------------------------------

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """Store keys and values, and attend with [M, H, d] over [M, K, d]; returns [M, H, d]."""
        if self._entering is not None:
            for part, starts in self._entering.parts:
                part.padded.fill(layer, key, value, starts)
            return self._entering.plan.attend(layer, query, key, value, scaling)
        if self._order is None:
            return self.parts[0].padded.decode(layer, query, key, value, scaling)
        places, inverse = self._order
        outs = []
        for part, rows in zip(self.parts, places, strict=True):
            q, k, v = (x.index_select(0, rows) for x in (query, key, value))
            outs.append(part.padded.decode(layer, q, k, v, scaling))
        return torch.cat(outs).index_select(0, inverse)

    # parts -------------------------------------------------------------------------------------------------------

    def _all(self) -> Iterable[_Part]:
        return [*self.parts, *(part for part, _ in self._entering.parts)] if self._entering else self.parts

    def _settle(self) -> None:
        """Turn prefilled prompts into ordinary parts."""
        self.parts = list(self._all())  # before they are forgotten as entering
        self._entering = None

    def _too_much(self, padding: int, all_places: int) -> bool:
        """True if ``padding`` empty places out of ``all_places`` are too many."""
        return padding * self.token_bytes > PADDING and padding > SHARE * (all_places - padding)

    def _apart(self, widths: Sequence[int]) -> list[list[int]]:
        """Group prompts that may be padded to each other; return their numbers, the longest group first."""
        parts: list[list[int]] = []
        total = 0
        for i in sorted(range(len(widths)), key=lambda i: -widths[i]):
            places = widths[parts[-1][0]] * (len(parts[-1]) + 1) if parts else 0
            if not parts or self._too_much(places - total - widths[i], places):
                parts.append([])
                total = 0
            parts[-1].append(i)
            total += widths[i]
        return [sorted(part) for part in parts]

    def _together(self) -> None:
        """Merge parts that need not be apart (any more), and index rows if several parts remain."""
        self.parts.sort(key=lambda part: -part.padded.width)
        i = 0
        while i + 1 < len(self.parts):
            longer = self.parts[i]
            shorter = self.parts[i + 1]
            if self._too_much(*longer.padded.padding_with(shorter.padded)):
                i += 1
                continue
            longer.padded.absorb(shorter.padded)
            longer.places = torch.cat([longer.places, shorter.places])
            del self.parts[i + 1]
        self._order = None
        places = torch.cat([torch.zeros(0, dtype=torch.int64), *(part.places for part in self.parts)])
        if len(self.parts) == 1 and not torch.equal(places, torch.arange(len(places))):
            self.parts[0].padded.keep(torch.argsort(places))
            self.parts[0].places = torch.arange(len(places))
        elif len(self.parts) > 1:
            device_places = [part.places.to(self.device, non_blocking=True) for part in self.parts]
            self._order = device_places, torch.argsort(places).to(self.device, non_blocking=True)


def closed_up(alive: Tensor) -> Tensor:
    """Return the live rows, with the last of them moved into the places of dead ones; the others stay. On the host."""
    places = alive.nonzero().squeeze(1)
    count = len(places)
    order = torch.arange(count)
    order[~alive[:count]] = places[places >= count]
    return order
