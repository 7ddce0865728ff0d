"""Training order: the prompts of an iteration, and this rank's share of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gspo_lightning.core.distributed import rank_and_world
from gspo_lightning.core.randomness import Purpose, Shuffle, stream
from gspo_lightning.core.types import Prompt

ORDER = 2
"""Version of the training order, which checkpoints name."""


class PromptOrder:
    """Training order of a prompt set: a fresh permutation for every pass, a function of the seed alone.

    The rest of a pass that does not fill a rollout batch is skipped, so no iteration sees a prompt twice. Neither time
    nor memory grows with the set: any place of any pass is computed alone.

    Args:
        prompts: the set.
        per_iteration: prompts of an iteration over all ranks, a multiple of ``mini_batches`` times the ranks.
        mini_batches: number of mini-batches an iteration's groups are cut into.
        seed: of the run.
    """

    def __init__(self, prompts: Sequence[Prompt], per_iteration: int, mini_batches: int, seed: int) -> None:
        self._prompts = prompts
        self._size = per_iteration
        self._mini_batches = mini_batches
        self._seed = seed
        self._shuffled: tuple[tuple[int, int], Sequence[int]] = ((0, 0), ())

    sources: tuple[str, ...] = ()
    """Names of the prompts' sources, if there are several."""

    def prompts_for_rank(self, iteration: int) -> list[Prompt]:
        """Return this rank's prompts of an iteration, mini-batch by mini-batch."""
        share = self._size // rank_and_world()[1]
        return [self.at(place) for place in range(iteration * share, (iteration + 1) * share)]

    def replacement_prompts(self, iteration: int, limit: int) -> list[Prompt]:
        """Return up to ``limit`` unused prompts of every source for this rank, to replace dead groups."""
        rank, world = rank_and_world()
        rank_spare = itertools.islice(self._spare(iteration), rank, None, world)
        return [self._prompts[i] for i in itertools.islice(rank_spare, limit)]

    @property
    def learns(self) -> bool:
        """True if :meth:`observe` needs the results of sampled groups."""
        return False

    def observe(self, iteration: int, rates: Mapping[int, float]) -> None:
        """Record the mean accuracy (NaN: unknown) of every group that an iteration sampled, by prompt id."""

    def state_dict(self) -> dict[str, Any]:
        """Return the version, the only state."""
        return {"order": ORDER}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state from :meth:`state_dict`: an order without a curriculum has none."""

    def at(self, place: int) -> Prompt:
        """Return this rank's prompt at a place of its training order, counted over iterations.

        Group ``j`` of a global mini-batch goes to rank ``j % world``: a mini-batch holds the same groups for any number
        of ranks.
        """
        rank, world = rank_and_world()
        iteration, inside = divmod(place, self._size // world)
        groups = self._size // self._mini_batches
        mini_batch, turn = divmod(inside, groups // world)
        return self._prompts[self._number(iteration, mini_batch * groups + turn * world + rank)]

    def _number(self, iteration: int, place: int) -> int:
        """Return the index of the prompt at a place of an iteration, counted over all ranks."""
        number, turn = divmod(iteration, len(self._prompts) // self._size)
        return self._order(Purpose.PROMPT_ORDER, number)[turn * self._size + place]

    def _spare(self, iteration: int) -> Iterator[int]:
        taken = {self._number(iteration, place) for place in range(self._size)}
        order = self._order(Purpose.RESAMPLING, iteration)
        for place in range(len(self._prompts)):
            number = order[place]
            if number not in taken:
                yield number

    def _order(self, purpose: Purpose, number: int) -> Sequence[int]:
        """Return a permutation of the set; the last one is kept for callers that read it place by place."""
        key = (purpose, number)
        if self._shuffled[0] != key:
            base = stream(self._seed, purpose, number)
            size = len(self._prompts)
            self._shuffled = key, Shuffle(base, size)
        return self._shuffled[1]
