"""Sequences whose elements are made on access; only an index is in memory."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, overload

__all__ = ["OnDemand", "Placed", "place_of"]

T = TypeVar("T")


class OnDemand(Sequence[T]):
    """A sequence that makes its elements on access, always the same ones; a slice is a list."""

    @abstractmethod
    def at(self, place: int) -> T:
        """Return the element at a place from 0 to the length less one."""

    @overload
    def __getitem__(self, place: int) -> T: ...

    @overload
    def __getitem__(self, place: slice) -> list[T]: ...

    def __getitem__(self, place: int | slice) -> T | list[T]:
        """Index as a list does."""
        places = range(len(self))[place]  # an index out of range is refused here
        return self.at(places) if isinstance(places, int) else [self.at(i) for i in places]


@dataclass(frozen=True)
class Placed(OnDemand[T]):
    """Elements with their places in a file.

    Args:
        pairs: in the order of their file.
        where: element number, from 0 -> its file and line, as messages name it.
    """

    pairs: Sequence[T]
    where: Callable[[int], str]

    def __len__(self) -> int:
        return len(self.pairs)

    def at(self, place: int) -> T:
        """Return the element at a place."""
        return self.pairs[place]


def place_of(records: Iterable[Any], number: int) -> str:
    """Return the name that messages use for a record, counted from 0: file and line if ``records`` know them.

    >>> place_of(["a", "b"], 1)
    'record 2'
    """
    place = getattr(records, "place", None)
    return f"record {number + 1}" if place is None else str(place(number))
