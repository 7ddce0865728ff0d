"""Training order of prompts drawn in proportion to their weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from gspo_lightning.randomness import uniforms

__all__ = ["LEAST", "MOST", "WEIGHT", "WeightedTurns", "weighted_sample"]

WEIGHT = "weight"
"""Name of the column with weights: how often a prompt is drawn, relative to the others of its source."""
LEAST, MOST = 1e-6, 1e6
"""Smallest and largest weight of a prompt."""


class WeightedTurns:
    """Order of weighted prompts by due time.

    Draw k of a prompt with weight w (weights are scaled to a mean of 1) is due at time (k + u) / w, with its own
    uniform u. So every prompt has one draw in each span 1 / w: by any time t it was due t w times, rounded down or up.
    Equal weights would give a fresh shuffle for every pass. No iteration takes a prompt twice: a second draw waits for
    the next iteration.

    Iterations are a function of the stream and their number alone; earlier ones are repeated to find a later one.

    Args:
        weights: [n], above 0; none times the prompts of an iteration may exceed their sum, or draws wait for ever.
        base: a stream of random numbers.
        counts: iteration -> number of prompts it takes, at most n.

    >>> turns = WeightedTurns(np.array([1.0, 1.0, 2.0]), base=7, counts=lambda iteration: 2)
    >>> drawn = [place for iteration in range(4) for place in turns.of(iteration)]
    >>> [drawn.count(place) for place in range(3)]
    [2, 2, 4]
    """

    def __init__(self, weights: NDArray[np.float64], base: int, counts: Callable[[int], int]) -> None:
        relative = weights / weights.max()
        self._rates = relative * (len(weights) / math.fsum(relative))
        self._base, self._counts = base, counts
        self._taken: list[int] = []
        self._waiting: list[int] = []
        self._rewind()

    def of(self, iteration: int) -> Sequence[int]:
        """Return the places of an iteration's prompts, all different."""
        if iteration < self._next - 1:
            self._rewind()
        while self._next <= iteration:
            self._taken = self._take(self._counts(self._next))
            self._next += 1
        return self._taken

    def _rewind(self) -> None:
        self._next, self._pass, self._read = 0, 0, 0
        self._taken, self._waiting = [], []
        self._due = self._due_in(0)

    def _take(self, count: int) -> list[int]:
        ahead = self._due[self._read : self._read + count].tolist()
        if not self._waiting and len({*ahead}) == count:  # the usual case
            self._read += count
            return ahead
        found: dict[int, None] = {}
        waiting, self._waiting = self._waiting, []
        while len(found) < count:
            place = waiting.pop(0) if waiting else self._next_due()
            if place in found:
                self._waiting.append(place)
            found[place] = None
        self._waiting += waiting
        return list(found)

    def _next_due(self) -> int:
        while self._read == len(self._due):
            self._pass, self._read = self._pass + 1, 0
            self._due = self._due_in(self._pass)
        self._read += 1
        return int(self._due[self._read - 1])

    def _due_in(self, number: int) -> NDArray[np.int64]:
        """Return the places of all draws due from time ``number`` to ``number + 1``, in order."""
        places = np.arange(len(self._rates))
        draw = np.maximum(np.floor(number * self._rates) - 1, 0).astype(np.int64)  # one more on each side: rounding
        last = np.floor((number + 1) * self._rates).astype(np.int64) + 1
        found, times = [], []
        while len(places):
            chance = uniforms(self._base, torch.from_numpy(places), torch.from_numpy(draw)).numpy()
            time = (draw + chance) / self._rates[places]
            now = (time >= number) & (time < number + 1)
            found.append(places[now])
            times.append(time[now])
            more = draw < last
            places, draw, last = places[more], draw[more] + 1, last[more]
        due = np.concatenate(found)
        ordered: NDArray[np.int64] = due[np.lexsort((due, np.concatenate(times)))]
        return ordered


def weighted_sample(weights: NDArray[np.float64], draws: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return all places in a random order, drawn without replacement in proportion to their weights.

    Args:
        weights: [n], above 0.
        draws: [n] uniform in [0, 1).

    >>> weighted_sample(np.array([1.0, 100.0]), np.array([0.5, 0.5]))
    array([1, 0])
    """
    order: NDArray[np.int64] = np.argsort(-np.log1p(-draws) / weights, kind="stable")
    return order
