"""Curriculum base class: chooses prompts by the results of earlier iterations, with a state that is saved."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(slots=True)
class Seen:
    """Known facts about the n prompts of a set (or of one source of a mixture), in their order.

    ``difficulty`` [n] float64 is the column of that name, NaN if empty. ``rate`` [n] float64 is the mean accuracy
    reward, from 0 to 1, over the latest group of responses, NaN before the first. ``asked`` [n] int64 is the latest
    iteration that sampled a prompt, -1 before the first. ``iteration`` is the one to choose for, or the one just
    sampled.
    """

    difficulty: NDArray[np.float64]
    rate: NDArray[np.float64] = field(init=False)
    asked: NDArray[np.int64] = field(init=False)
    iteration: int = 0

    def __post_init__(self) -> None:
        self.rate = np.full(len(self.difficulty), np.nan)
        self.asked = np.full(len(self.difficulty), -1, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.difficulty)


class Curriculum(ABC):
    """Rule that chooses the prompts of an iteration. Defining a subclass registers it by its name.

    Each source of a mixture has its own copy of the configured curriculum. All ranks get the same arguments and must
    choose the same prompts: decide by the arguments alone, and take random numbers from ``draws``.
    """

    def begin(self, seen: Seen) -> None:
        """Prepare for the prompts of a run; nothing was sampled yet.

        Raises:
            UserError: this curriculum cannot work with the prompts.
        """
        self.per_prompt: dict[str, NDArray[np.float64]] = {}
        """Name -> [n], a value for every prompt that was sampled; saved with checkpoints."""
        self.values: dict[str, float] = {}
        """Name -> number, other state; saved with checkpoints."""

    @abstractmethod
    def choose(self, seen: Seen, free: NDArray[np.bool_], count: int, draws: NDArray[np.float64]) -> NDArray[np.int64]:
        """Choose the places [count] of different prompts.

        Args:
            seen: known facts about the prompts.
            free: [n], True for prompts that may be chosen; at least ``count`` of them.
            count: number of prompts to choose; fewer are an error.
            draws: [n] uniform in [0, 1), new ones in every iteration.
        """

    def learn(  # noqa: B027 (a hook that not all need)
        self, seen: Seen, places: NDArray[np.int64], rates: NDArray[np.float64]
    ) -> None:
        """Learn from the results of an iteration; ``seen`` holds them already.

        Args:
            seen: known facts about the prompts.
            places: [m] of the prompts that were sampled, ascending.
            rates: [m] their mean accuracy reward, NaN if no response has a reward.
        """


def first_of(order: tuple[NDArray[np.generic], ...], free: NDArray[np.bool_], count: int) -> NDArray[np.int64]:
    """Return the places of the first ``count`` free prompts, sorted by the first key, then by the next ...

    >>> first_of((np.array([1, 0, 0, 0]), np.array([0.0, 0.9, 0.1, 0.5])), np.array([True, True, True, False]), 2)
    array([2, 1])
    """
    places = np.flatnonzero(free)
    ranked = np.lexsort(tuple(key[places] for key in reversed(order)))
    chosen: NDArray[np.int64] = places[ranked[:count]]
    return chosen


class Uniform(Curriculum):
    """A fresh shuffle for every pass over the prompts (the default). It keeps no state and costs no memory."""

    def choose(self, seen: Seen, free: NDArray[np.bool_], count: int, draws: NDArray[np.float64]) -> NDArray[np.int64]:
        """Choose the prompts asked the longest ago; a run with this curriculum orders its prompts without it."""
        return first_of((seen.asked, draws), free, count)
