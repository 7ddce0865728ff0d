"""Which prompts an iteration has, and which of them are this rank's."""

from __future__ import annotations

from collections.abc import Sequence

from gspo_lightning.distributed import rank_and_world
from gspo_lightning.randomness import Purpose, permutation, stream
from gspo_lightning.types import Prompt

__all__ = ["PromptOrder", "rank_share"]


class PromptOrder:
    """The training order of a prompt set: a fresh permutation for every pass over it, a function of the seed alone.

    What is left of a pass and does not fill a rollout batch is skipped, so no iteration sees a prompt twice.

    Args:
        prompts: the set.
        per_iteration: prompts of an iteration over all ranks.
        mini_batches: that an iteration's groups are cut into.
        seed: of the run.
    """

    def __init__(self, prompts: Sequence[Prompt], per_iteration: int, mini_batches: int, seed: int) -> None:
        self._prompts, self._size, self._mini_batches, self._seed = prompts, per_iteration, mini_batches, seed

    def share(self, iteration: int) -> list[Prompt]:
        """This rank's prompts of an iteration, mini-batch by mini-batch."""
        return [self._prompts[i] for i in rank_share(self._indices(iteration), self._mini_batches)]

    def spare(self, iteration: int, limit: int) -> list[Prompt]:
        """At most so many prompts of this rank that are in nobody's share, to be sampled in place of dead groups."""
        rank, world = rank_and_world()
        order = permutation(stream(self._seed, Purpose.RESAMPLING, iteration), len(self._prompts)).tolist()
        taken = set(self._indices(iteration))
        return [self._prompts[i] for i in [i for i in order if i not in taken][rank::world][:limit]]

    def at(self, place: int) -> Prompt:
        """This rank's prompt at a place of the training order, counted over iterations."""
        iteration, inside = divmod(place, self._size // rank_and_world()[1])
        return self.share(iteration)[inside]

    def _indices(self, iteration: int) -> list[int]:
        number, place = divmod(iteration, len(self._prompts) // self._size)
        order = permutation(stream(self._seed, Purpose.PROMPT_ORDER, number), len(self._prompts))
        return order[place * self._size : (place + 1) * self._size].tolist()


def rank_share(order: Sequence[int], mini_batches: int) -> list[int]:
    """The part of a global order of groups that this rank samples and trains on.

    Group ``j`` of a global mini-batch goes to rank ``j % world``, so that a mini-batch holds the same groups whatever
    the number of ranks.
    """
    rank, world = rank_and_world()
    size = len(order) // mini_batches
    return [order[m * size + j] for m in range(mini_batches) for j in range(rank, size, world)]
