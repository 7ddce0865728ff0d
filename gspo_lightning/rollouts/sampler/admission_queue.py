"""Admission queue of rows: as many join a decoder as fit into memory at their full length."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby

from gspo_lightning.core.pictures import Media
from gspo_lightning.rollouts.sampler.memory import Costs
from gspo_lightning.rollouts.source import ResponsePrefix


@dataclass(frozen=True, eq=False)
class Block:
    """Rows that share a context.

    Args:
        slots: numbers of their beginnings.
        context: all tokens that the policy reads before the next one.
        media: pictures in the context.
        step: number of tokens of these responses at the end of the context, from an earlier batch.
    """

    slots: tuple[int, ...]
    context: tuple[int, ...]
    media: Media
    step: int = 0


@dataclass(frozen=True, slots=True)
class Prefill:
    """Contexts that join a decoder, each read once for all its rows."""

    contexts: Sequence[Sequence[int]]
    """Token ids of P contexts."""
    rows: Sequence[int]
    """[P]: number of new rows of each context."""
    media: Sequence[Media] = ()
    """[P]: pictures of each context; empty: no context has any."""
    room: Sequence[int] = ()
    """[sum(rows)]: tokens that each row may get; a decoder whose rows grow does not ask."""

    @classmethod
    def of(cls, blocks: Sequence[Block], beginnings: Sequence[ResponsePrefix]) -> Prefill:
        """Return the contexts of blocks, whose rows may get what is left of their token budgets."""
        return cls(
            contexts=[block.context for block in blocks],
            rows=[len(block.slots) for block in blocks],
            media=[block.media for block in blocks],
            room=[beginnings[slot].token_budget - block.step for block in blocks for slot in block.slots],
        )


class AdmissionQueue:
    """Queue of blocks in the order in which they may join.

    Args:
        beginnings: beginnings of all responses.
        blocks: sizes of runs of neighbours that share a context.
        most: rows at the same time. Rows of a block are decoded together even if they are more.
        join_at: share of ``most`` that must be free before others join: a few rows are not worth a forward pass.
    """

    def __init__(self, beginnings: Sequence[ResponsePrefix], blocks: Iterable[int], most: int, join_at: float) -> None:
        self.beginnings = beginnings
        self.most = most
        self.join_at = join_at
        self.entered = 0
        """Number of rows that have ever joined; they are the first ones of all."""
        self.fitting: int | None = None
        """Rows that fit into memory, known after it has run out; blocks are then split, too."""
        self._waiting: list[Block] = []
        self._inside: dict[int, Block] = {}
        first = 0
        for count in blocks:
            row = beginnings[first]
            self._waiting.append(Block(tuple(range(first, first + count)), row.context, row.prompt.media))
            first += count

    def __len__(self) -> int:
        """Number of waiting blocks."""
        return len(self._waiting)

    @property
    def widest(self) -> int:
        """Tokens of the longest waiting context."""
        return max((len(block.context) for block in self._waiting), default=0)

    @property
    def put_back(self) -> set[int]:
        """Waiting rows that have been decoded before."""
        return {slot for block in self._waiting for slot in block.slots if slot < self.entered}

    def admit(self, living: Sequence[int], may_grow: bool, costs: Costs, budget: int | None) -> list[Block]:
        """Remove and return the blocks that may join now.

        Args:
            living: rows that are being decoded.
            may_grow: whether others may join them.
            costs: memory costs of rows.
            budget: bytes for all rows; None: no bound.
        """
        most = self.most if self.fitting is None else min(self.most, self.fitting)
        free_rows = most - len(living)
        if living and (not may_grow or free_rows < self.join_at * most):
            return []
        free = None if budget is None else budget - self._held(living, costs)
        admitted: list[Block] = []
        while self._waiting:
            block = self._waiting[0]
            fits = self._fits(block, costs, free)
            if admitted or living:
                if len(block.slots) > min(free_rows, fits):
                    break
            else:  # the first block of an empty batch joins in any case, if need be row by row
                fits = fits if self.fitting is None else min(fits, self.fitting)
                block = self._head(max(1, fits))
            del self._waiting[0]
            admitted.append(block)
            free_rows -= len(block.slots)
            free = None if free is None else free - self._cost(block, costs)
        self._inside = {slot: self._inside[slot] for slot in living}
        for block in admitted:
            self._inside |= dict.fromkeys(block.slots, block)
            self.entered = max(self.entered, block.slots[-1] + 1)
        return admitted

    def back(self, rows: Sequence[tuple[int, Sequence[int]]]) -> None:
        """Return rows to the front of the queue: (slot, tokens so far) of each."""
        blocks: list[Block] = []
        # rows that were in one block and have the same tokens share a context again
        for (block, written), equal in groupby(sorted(rows), key=lambda row: (self._inside[row[0]], tuple(row[1]))):
            beginning = self.beginnings[block.slots[0]]
            slots = tuple(slot for slot, _ in equal)
            blocks.append(Block(slots, (*beginning.context, *written), beginning.prompt.media, len(written)))
        self._waiting[:0] = blocks

    def _head(self, rows: int) -> Block:
        """Return the first block, cut to at most ``rows`` rows; the others form the next block."""
        block = self._waiting[0]
        if rows < len(block.slots):
            self._waiting[:1] = [replace(block, slots=block.slots[:rows]), replace(block, slots=block.slots[rows:])]
        return self._waiting[0]

    def _fits(self, block: Block, costs: Costs, free: int | None) -> int:
        """Number of rows of a block that fit into ``free`` bytes."""
        if free is None:
            return len(block.slots)
        left = free - costs.context(len(block.context))
        return sum(total <= left for total in self._sums(block, costs))

    def _sums(self, block: Block, costs: Costs) -> list[int]:
        """Return the bytes of the first row, of the first two rows, and so on."""
        return list(accumulate(costs.row(self.beginnings[slot].token_budget - block.step) for slot in block.slots))

    def _cost(self, block: Block, costs: Costs) -> int:
        return costs.context(len(block.context)) + self._sums(block, costs)[-1]

    def _held(self, living: Sequence[int], costs: Costs) -> int:
        """Upper bound of the bytes of the rows being decoded."""
        inside = [(slot, self._inside[slot]) for slot in living]
        contexts = {id(block): costs.context(len(block.context)) for _, block in inside}
        return sum(contexts.values()) + sum(
            costs.row(self.beginnings[slot].token_budget - block.step) for slot, block in inside
        )
