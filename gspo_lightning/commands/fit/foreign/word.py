"""A setting of another framework: what it is called here and what differs, or why there is none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Table", "Word", "none", "to"]


@dataclass(frozen=True, slots=True)
class Word:
    """``ours`` are settings of a config (``data.group_size``), the one to write first; none where nothing corresponds.

    ``note`` says how the value changes and what differs, or why there is nothing.
    """

    ours: tuple[str, ...]
    note: str = ""

    @property
    def called(self) -> str:
        """What it is called here.

        >>> to("data.group_size").called, none("there is no cache").called
        ('data.group_size', 'no equivalent')
        """
        return " and ".join(self.ours) or "no equivalent"

    def __str__(self) -> str:
        """
        >>> str(to("data.columns", note="a mapping")), str(none("there is no cache"))
        ('data.columns: a mapping', 'no equivalent: there is no cache')
        """
        return self.called + (f": {self.note}" if self.note else "")


Table = Mapping[str, Mapping[str, Word]]
"""Subject -> their word -> what becomes of it."""


def to(*ours: str, note: str = "") -> Word:
    """A word with a counterpart."""
    return Word(ours, note)


def none(why: str) -> Word:
    """A word without one."""
    return Word((), why)
