"""KV cache in pages: prompts are shared by whole pages, and a row decodes in the bits of the training forward."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gspo_lightning.policy.attention.pages import PAGE, PagedPlan, attend_pages, pages_of, rows_of_tile

GROWTH = 1.25
"""New size of the pool of pages, relative to the pages that are needed."""


class PagedCache:
    """KV cache of R rows as a :class:`gspo_lightning.policy.attention.Plan`, with the calls of :class:`GroupCache`.

    A page belongs to all rows of its prompt if the prompt fills it, and to one row otherwise. Page 0 is empty and never
    written.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.longest = 0
        self.lengths = torch.zeros(0, dtype=torch.int64, device=device)
        """[R] tokens of each row."""
        self.table = torch.zeros(0, 1, dtype=torch.int64, device=device)
        """[R, pages] pages of each row; 0 beyond its last one."""
        self._pools: dict[int, tuple[Tensor, Tensor]] = {}
        self._free: list[int] = []
        self._pages = 1
        self._prefill: tuple[PagedPlan, Tensor, Tensor] | None = None

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.lengths)

    @property
    def nbytes(self) -> int:
        """Bytes of all pages, including free ones."""
        return sum(x.nbytes for pool in self._pools.values() for x in pool)

    def enter(
        self, widths: Sequence[int], rows: Sequence[int], blocks: Sequence[tuple[int, int]] = (), prefix: int = 0
    ) -> None:
        """Prepare a prefill of new prompts, packed one after another; see :meth:`GroupCache.enter`."""
        assert not blocks, "pictures"
        segments = [(0, prefix)] if prefix else []
        start = prefix
        for width in widths:
            segments.append((start, width - prefix))
            start += width - prefix
        plan = PagedPlan(segments, [], max(widths), prefix)
        sequences = plan.sequences[1:] if prefix else plan.sequences
        index, table = pages_of(sequences)
        owner = torch.arange(len(widths)).repeat_interleave(torch.tensor(rows))
        table = table[owner]
        # each row gets its own copy of a page that its prompt does not fill: (row, place of that page)
        partial = []
        for row, prompt in enumerate(owner.tolist()):
            filled, rest = divmod(len(sequences[prompt]), PAGE)
            if rest:
                partial.append((row, filled))
        copies = [int(table[row, place]) for row, place in partial]
        used = dict.fromkeys(table.flatten().tolist())
        copied = set(copies)
        shared = [i for i in used if i not in copied]
        pages = torch.tensor(self._take(len(shared) + len(copies)))
        page_of = torch.zeros(len(index), dtype=torch.int64)
        page_of[torch.tensor(shared, dtype=torch.int64)] = pages[: len(shared)]
        counts = torch.tensor([-(-len(sequences[prompt]) // PAGE) for prompt in owner.tolist()])
        table = page_of[table].masked_fill(torch.arange(table.shape[1]) >= counts.unsqueeze(1), 0)
        for (row, place), page in zip(partial, pages[len(shared) :].tolist(), strict=True):
            table[row, place] = page
        self._prefill = plan, index[torch.tensor(shared + copies)].to(self.device), pages.to(self.device)
        self._widen(table.shape[1])
        table = torch.nn.functional.pad(table, (0, self.table.shape[1] - table.shape[1])).to(self.device)
        self.table = torch.cat([self.table, table])
        fresh = torch.tensor(widths)[owner].to(self.device)
        self.lengths = torch.cat([self.lengths, fresh])
        self.longest = max(self.longest, *widths)

    def write(self) -> None:
        """Prepare a forward pass with one token for every row."""
        self._prefill = None
        self.longest += 1
        page = self.lengths // PAGE
        self._widen(int(page.max()) + 1)
        begun = (self.lengths % PAGE == 0).nonzero().squeeze(1)
        if len(begun):
            self.table[begun, page[begun]] = torch.tensor(self._take(len(begun)), device=self.device)
        self._page = self.table.gather(1, page.unsqueeze(1)).squeeze(1)
        self._place = self.lengths % PAGE

    def advance(self) -> None:
        """Count one more token for every row."""
        self.lengths = self.lengths + 1

    def keep(self, rows: Tensor) -> None:
        """Keep only these rows (on the host), in this order, and the pages they need."""
        self._prefill = None
        there = rows.to(self.device)
        self.table = self.table[there]
        self.lengths = self.lengths[there]
        used = set(self.table.unique().tolist())
        self._free = [page for page in range(self._pages - 1, 0, -1) if page not in used]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """Store keys and values, and attend with [M, H, d] over [M, K, d]; returns [M, H, d]."""
        keys, values = self._pool(layer, key)
        if self._prefill is not None:
            plan, index, pages = self._prefill
            keys[pages], values[pages] = (x[index].transpose(1, 2) for x in (key, value))
            return plan.attend(layer, query, key, value, scaling)
        keys[self._page, :, self._place] = key
        values[self._page, :, self._place] = value
        heads = key.shape[1]
        shared = query.shape[1] // heads
        _, rows = rows_of_tile(shared)
        q = torch.nn.functional.pad(query.unflatten(1, (heads, shared)), (0, 0, 0, rows - shared))
        last = torch.nn.functional.pad(self.lengths.unsqueeze(1).expand(-1, shared), (0, rows - shared))
        out, _ = attend_pages(q, last, keys, values, self.table, scaling)
        return out[:, :, :shared].flatten(1, 2).to(query.dtype)

    def _take(self, count: int) -> list[int]:
        """Return the numbers of free pages, new ones if there are too few."""
        taken = [self._free.pop() for _ in range(min(count, len(self._free)))]
        fresh = range(self._pages, self._pages + count - len(taken))
        self._pages += len(fresh)
        return [*taken, *fresh]

    def _pool(self, layer: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values [pages, K, PAGE, d] of a layer, with room for all pages."""
        old = self._pools.get(layer)
        if old is None or len(old[0]) < self._pages:
            size = int(GROWTH * self._pages) + 1
            pool = [like.new_zeros(size, like.shape[1], PAGE, like.shape[2]) for _ in range(2)]
            if old is not None:
                for larger, held in zip(pool, old, strict=True):
                    larger[: len(held)] = held
            self._pools[layer] = pool[0], pool[1]
        return self._pools[layer]

    def _widen(self, pages: int) -> None:
        if pages > self.table.shape[1]:
            self.table = torch.nn.functional.pad(self.table, (0, pages - self.table.shape[1]))
