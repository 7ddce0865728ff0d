"""Readings: how a metric is computed from sums. The name of a sum is given here and where it is made, nowhere else.

A sum is a pair over all micro-batches and ranks of an update: the sum of the values, and their count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

Sums = Mapping[str, tuple[float, float]]
"""Name -> (sum, count)."""


class Reading(Protocol):
    """Computation of a number from sums that include at least the one of this name."""

    @property
    def name(self) -> str:
        """Name of the sum without which the metric is absent."""

    def read(self, sums: Sums) -> float:
        """Compute the number."""


@dataclass(frozen=True, slots=True)
class Total:
    """The sum itself, for shares that are already divided."""

    name: str

    def read(self, sums: Sums) -> float:
        """Return sum."""
        return sums[self.name][0]


@dataclass(frozen=True, slots=True)
class Mean:
    """The mean of values; 0 if there are none.

    >>> Mean("x").read({"x": (3.0, 4.0)})
    0.75
    """

    name: str

    def read(self, sums: Sums) -> float:
        """Return sum / count."""
        return _mean(sums[self.name])


@dataclass(frozen=True, slots=True)
class Root:
    """The root of the mean of squares.

    >>> Root("xx").read({"xx": (8.0, 2.0)})
    2.0
    """

    name: str

    def read(self, sums: Sums) -> float:
        """Return sqrt(sum / count)."""
        return float(_mean(sums[self.name]) ** 0.5)


@dataclass(frozen=True, slots=True)
class Deviation:
    """Standard deviation (divisor: the count): ``name`` is the sum of squares, ``first`` that of the values.

    >>> Deviation("xx", first="x").read({"x": (4.0, 2.0), "xx": (10.0, 2.0)})  # 1 and 3
    1.0
    """

    name: str
    first: str

    def read(self, sums: Sums) -> float:
        """Return sqrt(mean of squares - square of the mean); 0 if rounding makes that negative."""
        return float(max(_mean(sums[self.name]) - _mean(sums[self.first]) ** 2, 0.0) ** 0.5)


@dataclass(frozen=True, slots=True)
class EffectiveSize:
    """Kish's effective sample size of weights, as a share of the samples, from the same two sums as a deviation.

    >>> EffectiveSize("ww", first="w").read({"w": (4.0, 3.0), "ww": (6.0, 3.0)})  # 1, 1 and 2
    0.8888888888888888
    """

    name: str
    first: str

    def read(self, sums: Sums) -> float:
        """Return (sum w)^2 / (n sum w^2); 0 if there are no weights."""
        weights, count = sums[self.first]
        squares, _ = sums[self.name]
        return weights**2 / (count * squares) if count and squares else 0.0


READINGS: dict[str, Callable[..., Reading]] = {
    "total": Total,
    "mean": Mean,
    "root": Root,
    "deviation": Deviation,
    "effective_size": EffectiveSize,
}
"""Name in a metric's definition -> reading."""


def _mean(pair: tuple[float, float]) -> float:
    total, count = pair
    return total / count if count else 0.0
