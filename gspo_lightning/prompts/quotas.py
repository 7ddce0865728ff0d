"""Quotas of sources per iteration: whole numbers of prompts whose deviations never add up."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import ceil, lcm

__all__ = ["Quota", "Quotas", "largest_remainder"]

_LOOKED_AT = 1000
"""Iterations searched for the largest quota."""


def largest_remainder(shares: Sequence[Fraction], total: int) -> list[int]:
    """Round shares to whole numbers that add up to ``total``: each share's floor, plus one for the largest fractions.

    A share below 0 gets 0. Of equal fractions the earlier ones come first.

    >>> largest_remainder([Fraction(16, 3), Fraction(8, 3)], 8)
    [5, 3]
    """
    found = [max(0, share.numerator // share.denominator) for share in shares]
    by_fraction = sorted(range(len(shares)), key=lambda i: found[i] - shares[i])
    for turn in range(total - sum(found)):
        found[by_fraction[turn % len(shares)]] += 1
    for _ in range(sum(found) - total):  # shares below 0 were raised to 0
        found[max((i for i in by_fraction if found[i]), key=lambda i: found[i] - shares[i])] -= 1
    return found


class Quota:
    """Quota of one source in one iteration: ``count`` prompts from ``offset`` of pass ``number`` over it."""

    __slots__ = ("count", "number", "offset")

    def __init__(self, count: int, number: int, offset: int) -> None:
        self.count, self.number, self.offset = count, number, offset


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
        self._total, self._sizes = per_iteration, sizes
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
        counts = list(zip(*([q.count for q in self.of(i)] for i in range(period)), strict=True))
        self._rewind()
        return [max(column) for column in counts]

    def _rewind(self) -> None:
        self._next = 0
        self._owed = [Fraction(0)] * len(self._shares)
        self._quotas = [Quota(0, 0, 0) for _ in self._shares]

    def _advance(self) -> None:
        owed = [due + share for due, share in zip(self._owed, self._shares, strict=True)]
        counts = largest_remainder(owed, self._total)
        self._owed = [due - count for due, count in zip(owed, counts, strict=True)]
        after = []
        for count, before, size in zip(counts, self._quotas, self._sizes, strict=True):
            number, offset = before.number, before.offset + before.count
            if offset + count > size:
                number, offset = number + 1, 0
            after.append(Quota(count, number, offset))
        self._quotas, self._next = after, self._next + 1
