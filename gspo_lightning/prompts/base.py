"""What a run is trained and evaluated on: records with a prompt and whatever the rewards need to know about it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from gspo_lightning.types import Message

__all__ = ["Completion", "PromptSet", "Record", "map_columns"]

Record = Mapping[str, Any]
"""``prompt`` (text or a list of chat messages), usually ``answer``, and any column a reward asks for by name."""

Completion = str | Sequence[Message]
"""What a demonstration answers: a text, or a conversation that begins with the policy's (``assistant``) first turn."""


class PromptSet(ABC):
    """A finite list of records."""

    @abstractmethod
    def records(self) -> Sequence[Record]:
        """Every record, in an order that never changes."""

    def demonstrations(self) -> Sequence[tuple[str, Completion]]:
        """(prompt, completion) pairs for a cold start.

        Raises:
            NotImplementedError: this set has none.
        """
        raise NotImplementedError(f"{type(self).__name__} has no demonstrations")


def map_columns(record: Record, columns: Mapping[str, str]) -> dict[str, Any]:
    """Rename columns: ``columns`` maps our word to theirs (``{"prompt": "question"}``).

    >>> map_columns({"question": "1+1", "level": 3}, {"prompt": "question"})
    {'level': 3, 'prompt': '1+1'}
    """
    kept = {k: v for k, v in record.items() if k not in columns.values()}
    return kept | {ours: record[theirs] for ours, theirs in columns.items() if theirs in record}
