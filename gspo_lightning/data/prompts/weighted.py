"""Training order of prompts drawn in proportion to their weights, and whole quotas in such proportions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from math import ceil, lcm

import numpy as np
import torch
from numpy.typing import NDArray

from gspo_lightning.core.randomness import uniforms

WEIGHT = "weight"
"""Name of the column with weights: how often a prompt is drawn, relative to the others of its source."""
LEAST = 1e-6
"""Smallest weight of a prompt."""
MOST = 1e6
"""Largest weight of a prompt."""
_LOOKED_AT = 1000
"""Iterations searched for the largest quota."""


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
        self._base = base
        self._counts = counts
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
        self._next = 0
        self._pass = 0
        self._read = 0
        self._taken = []
        self._waiting = []
        self._due = self._due_in(0)

    def _take(self, count: int) -> list[int]:
        ahead = self._due[self._read : self._read + count].tolist()
        if not self._waiting and len({*ahead}) == count:  # the usual case
            self._read += count
            return ahead
        taken: dict[int, None] = {}
        waiting = self._waiting
        self._waiting = []
        while len(taken) < count:
            place = waiting.pop(0) if waiting else self._next_due()
            if place in taken:
                self._waiting.append(place)
            taken[place] = None
        self._waiting += waiting
        return list(taken)

    def _next_due(self) -> int:
        while self._read == len(self._due):
            self._pass += 1
            self._read = 0
            self._due = self._due_in(self._pass)
        self._read += 1
        return int(self._due[self._read - 1])

    def _due_in(self, number: int) -> NDArray[np.int64]:
        """Return the places of all draws due from time ``number`` to ``number + 1``, in order."""
        places = np.arange(len(self._rates))
        draw = np.maximum(np.floor(number * self._rates) - 1, 0).astype(np.int64)  # one more on each side: rounding
        last = np.floor((number + 1) * self._rates).astype(np.int64) + 1
        places_due = []
        times = []
        while len(places):  # the next draw of every prompt that has one left, all at once
            offset = uniforms(self._base, torch.from_numpy(places), torch.from_numpy(draw)).numpy()
            time = (draw + offset) / self._rates[places]
            is_due = (time >= number) & (time < number + 1)
            places_due.append(places[is_due])
            times.append(time[is_due])
            has_more = draw < last
            places = places[has_more]
            draw = draw[has_more] + 1
            last = last[has_more]
        due = np.concatenate(places_due)
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


def largest_remainder(shares: Sequence[Fraction], total: int) -> list[int]:
    """Round shares to whole numbers that add up to ``total``: each share's floor, plus one for the largest fractions.

    A share below 0 gets 0. Of equal fractions the earlier ones come first.

    >>> largest_remainder([Fraction(16, 3), Fraction(8, 3)], 8)
    [5, 3]
    """
    counts = [max(0, share.numerator // share.denominator) for share in shares]
    by_fraction = sorted(range(len(shares)), key=lambda i: counts[i] - shares[i])
    for turn in range(total - sum(counts)):
        counts[by_fraction[turn % len(shares)]] += 1
    for _ in range(sum(counts) - total):  # shares below 0 were raised to 0
        counts[max((i for i in by_fraction if counts[i]), key=lambda i: counts[i] - shares[i])] -= 1
    return counts


class Quota:
    """Quota of one source in one iteration: ``count`` prompts from ``offset`` of pass ``number`` over it."""

    __slots__ = ("count", "number", "offset")

    def __init__(self, count: int, number: int, offset: int) -> None:
        self.count = count
        self.number = number
        self.offset = offset


class Quotas:
    """Quotas of every iteration, a function of its number alone.

    Rounding leaves an iteration in debt to a source; the debt is added to its share of the next one. If every source's
    share is one prompt or more, its total so far is always less than one prompt away from its exact share.

    Args:
        weights: of the sources, above 0.
        per_iteration: prompts of an iteration.
        sizes: prompts of each source; a pass over one ends where the next quota does not fit into what is left.

    >>> quotas = Quotas([2, 1], 8, [100, 100])
    >>> [[q.count for q in quotas.of(i)] for i in range(4)]
    [[5, 3], [6, 2], [5, 3], [5, 3]]
    """

    def __init__(self, weights: Sequence[float], per_iteration: int, sizes: Sequence[int]) -> None:
        exact = [Fraction(str(weight)) for weight in weights]
        self._shares = [per_iteration * weight / sum(exact) for weight in exact]
        self._total = per_iteration
        self._sizes = sizes
        self._rewind()

    def of(self, iteration: int) -> list[Quota]:
        """Return the quota of each source. Computes all earlier iterations first, a few microseconds each."""
        if iteration < self._next - 1:
            self._rewind()
        while self._next <= iteration:
            self._advance()
        return self._quotas

    def share(self, number: int) -> Fraction:
        """Return the average number of prompts of an iteration from one source."""
        return self._shares[number]

    def largest(self) -> list[int]:
        """Return an upper bound of each source's quota; exact if the quotas repeat within 1,000 iterations."""
        period = lcm(*(share.denominator for share in self._shares))
        if period > _LOOKED_AT:
            return [ceil(share) + 1 for share in self._shares]
        largest = [0] * len(self._shares)
        for iteration in range(period):
            largest = [max(count, quota.count) for count, quota in zip(largest, self.of(iteration), strict=True)]
        self._rewind()
        return largest

    def _rewind(self) -> None:
        self._next = 0
        self._owed = [Fraction(0)] * len(self._shares)
        self._quotas = [Quota(0, 0, 0) for _ in self._shares]

    def _advance(self) -> None:
        owed = [due + share for due, share in zip(self._owed, self._shares, strict=True)]
        counts = largest_remainder(owed, self._total)
        self._owed = [due - count for due, count in zip(owed, counts, strict=True)]
        quotas = []
        for count, previous, size in zip(counts, self._quotas, self._sizes, strict=True):
            number = previous.number
            offset = previous.offset + previous.count
            if offset + count > size:  # the rest of this pass is skipped
                number += 1
                offset = 0
            quotas.append(Quota(count, number, offset))
        self._quotas = quotas
        self._next += 1
