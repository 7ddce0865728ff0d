"""Which prompts an iteration has, and which of them are this rank's."""

from __future__ import annotations

from collections.abc import Sequence

from gspo_lightning.distributed import rank_and_world

__all__ = ["rank_share"]


def rank_share(order: Sequence[int], mini_batches: int) -> list[int]:
    """The part of a global order of groups that this rank samples and trains on.

    Group ``j`` of a global mini-batch goes to rank ``j % world``, so that a mini-batch holds the same groups whatever
    the number of ranks.
    """
    rank, world = rank_and_world()
    size = len(order) // mini_batches
    return [order[m * size + j] for m in range(mini_batches) for j in range(rank, size, world)]
