"""Loaders for Lightning: batches of prompts, and the experience loader with its exact state."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.randomness import Purpose, permutation, stream
from gspo_lightning.core.types import MiniBatch, Prompt
from gspo_lightning.loop.experience.collect import Experience


class PromptLoader:
    """Batches of prompts to answer. A separate class, because Lightning takes a list for a list of loaders."""

    def __init__(self, batches: Sequence[list[Prompt]]) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[list[Prompt]]:
        return iter(self.batches)


class ExperienceLoader:
    """Sized, stateful iterable over the mini-batches of an iteration, with a new rollout when the buffer is spent.

    Its own counters decide its position, not Lightning's: ``trained`` moves only after an optimizer step, so a
    checkpoint at any moment continues with exactly the mini-batches that were not trained on yet.
    """

    def __init__(self, roll_out: Callable[[int], Experience], mini_batches: int, epochs: int, seed: int) -> None:
        self._roll_out = roll_out
        self._mini_batches = mini_batches
        self._epochs = epochs
        self._seed = seed
        self.iteration = -1
        self.trained = 0
        self.experience = Experience([], {})

    def __len__(self) -> int:
        return self._mini_batches * self._epochs

    def __iter__(self) -> Iterator[MiniBatch]:
        if self.spent:
            self.experience = Experience([], {})  # free the memory; an interrupted rollout still counts as not started
            experience = self._roll_out(self.iteration + 1)
            self.iteration += 1
            self.trained = 0
            self.experience = experience
        for position in range(self.trained, len(self)):
            yield self._batch(position)

    def _batch(self, position: int) -> MiniBatch:
        chosen = self.experience.mini_batches[self._place(position)]
        assert chosen is not None, "a checkpoint holds what is still to be trained on"
        return dataclasses.replace(chosen, index=position)

    def _place(self, position: int) -> int:
        """Return the index of the mini-batch for a position among those of the iteration."""
        count = len(self.experience.mini_batches)
        epoch, index = divmod(position, count)
        if not epoch:
            return index
        return int(permutation(stream(self._seed, Purpose.ROW_ORDER, self.iteration, epoch), count)[index])

    @property
    def recorded(self) -> dict[int, dict[str, Any]]:
        """Rows of the mini-batch that is next, or in training, whose tokens are recorded: position -> description."""
        rows = self.experience.recorded
        if not rows:
            return {}
        mini_batch = self._place(self.trained)
        return {row["place"]: row for row in rows if row["mini_batch"] == mini_batch}

    @property
    def spent(self) -> bool:
        """True if every mini-batch of the buffer has been trained on."""
        return self.trained >= len(self.experience.mini_batches) * self._epochs

    def mark_trained(self) -> None:
        """Count one more mini-batch as used by the optimizer."""
        self.trained += 1

    def position(self) -> dict[str, Any]:
        """Return counters and the part of the buffer that is still needed (none if spent): tensors and primitives.

        Not called ``state_dict``: Lightning would save it a second time and give rank 0's to every rank.
        """
        experience = Experience([], {}) if self.spent else self.experience
        positions = range(self.trained, len(experience.mini_batches) * self._epochs)
        return {
            "iteration": self.iteration,
            "trained": self.trained,
            "epochs": self._epochs,
            "experience": experience.state_dict({self._place(p) for p in positions}, begun=self.trained > 0),
        }

    def go_to(self, state: Mapping[str, Any]) -> None:
        """Restore the result of :meth:`position`."""
        self.iteration = int(state["iteration"])
        self.trained = int(state["trained"])
        self.experience = Experience.from_state_dict(state["experience"])


def part_of(ranks: Sequence[Mapping[str, Any]], rank: int, world: int) -> Mapping[str, Any]:
    """Return a rank's part of the states that the ranks of a checkpoint saved.

    Args:
        ranks: :meth:`ExperienceLoader.position` of each rank, in order; with ``partial`` if responses were cut.
        rank: the rank to restore.
        world: ranks of this run.

    Raises:
        UserError: the number of ranks changed in the middle of an iteration.
    """
    trained = all(state["trained"] >= len(state["experience"]["mini_batches"]) * state["epochs"] for state in ranks)
    has_partial = any(state.get("partial", {}).get("groups") for state in ranks)
    between_iterations = trained and not has_partial
    if len(ranks) != world and not between_iterations:
        raise UserError(
            "trainer.devices",
            f"the checkpoint was written by {len(ranks)} ranks in the middle of an iteration, this run has {world}",
            fix=f"resume with {len(ranks)} ranks, or from a checkpoint at the end of an iteration",
        )
    return ranks[min(rank, len(ranks) - 1)]
