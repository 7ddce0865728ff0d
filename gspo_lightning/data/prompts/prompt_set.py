"""Prompt sets: records with a prompt and the columns that rewards need."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from gspo_lightning.core.parsing import load_json
from gspo_lightning.core.types import Message

Record = Mapping[str, Any]
"""``prompt`` (text or a list of chat messages), usually ``answer``, and any column a reward asks for by name."""

Completion = str | Sequence[Message]
"""Completion of a demonstration: a text, or messages whose first turn is the policy's (``assistant``)."""
Prompted = str | Sequence[Message] | Record
"""Prompt of a demonstration: a text, messages, or a record with ``prompt`` and its pictures or ``tools``."""
Demonstration = tuple[Prompted, Completion]
"""(prompt, completion). If both are messages, a chat template writes the conversation."""

Columns = Mapping[str, str | list[str]]
"""Our name of a column -> its name in the data, or a list of names."""
_ABSENT = object()


class PromptSet(ABC):
    """A finite list of records."""

    @abstractmethod
    def records(self) -> Sequence[Record]:
        """Return every record, in an order that never changes."""

    def demonstrations(self) -> Sequence[Demonstration]:
        """Return (prompt, completion) pairs for a cold start.

        Raises:
            NotImplementedError: this set has none.
        """
        raise NotImplementedError(f"{type(self).__name__} has no demonstrations")


def map_columns(record: Record, columns: Columns) -> dict[str, Any]:
    """Rename columns: ``columns`` maps our names to those in the data (``{"prompt": "question"}``).

    A dot reaches into a column (``reward_model.ground_truth``), also if it holds JSON text. A list of columns becomes
    one mapping. For the prompt it becomes one text: the columns that exist and are not empty, with a blank line between
    them.

    >>> map_columns({"question": "1+1", "level": 3}, {"prompt": "question"})
    {'level': 3, 'prompt': '1+1'}
    >>> map_columns({"q": "1+1", "meta": {"gold": "2"}}, {"prompt": "q", "answer": "meta.gold"})["answer"]
    '2'
    >>> map_columns({"q": "1+1", "info": '{"gold": 2}'}, {"prompt": "q", "answer": "info.gold"})["answer"]
    2
    >>> map_columns({"q": "f?", "tests": [], "kind": "stdin"}, {"prompt": "q", "answer": ["tests", "kind"]})["answer"]
    {'tests': [], 'kind': 'stdin'}
    >>> map_columns({"q": "Add.", "starter": "def add(a, b):"}, {"prompt": ["q", "starter"]})["prompt"]
    'Add.\\n\\ndef add(a, b):'
    """
    if not columns:
        return dict(record)
    kept = {name: value for name, value in record.items() if name not in columns.values()}
    mapped = {name: _column(record, source) for name, source in columns.items()}
    if isinstance(columns.get("prompt"), list):
        texts = [text for text in mapped["prompt"].values() if isinstance(text, str) and text]
        mapped["prompt"] = "\n\n".join(texts)
    return kept | {name: value for name, value in mapped.items() if value is not _ABSENT}


def absent_columns(records: Sequence[Record], columns: Columns) -> list[tuple[str, str]]:
    """Return (our name, name in the data) of every mapped column that no record has.

    >>> absent_columns([{"q": "1+1"}, {"q": "1+2", "gold": "3"}], {"prompt": "question", "answer": "gold"})
    [('prompt', 'question')]
    """
    absent = []
    for name, source in columns.items():
        for column in [source] if isinstance(source, str) else source:
            if all(_column(record, column) is _ABSENT for record in records):
                absent.append((name, column))
    return absent


def _column(record: Record, source: str | list[str]) -> Any:
    if isinstance(source, list):
        return {name: record[name] for name in source if name in record}
    if source in record:
        return record[source]
    value: Any = record
    for part in source.split("."):
        if isinstance(value, str) and value.lstrip().startswith("{"):
            try:
                value = load_json(value)
            except ValueError:
                return _ABSENT
        if not isinstance(value, Mapping) or part not in value:
            return _ABSENT
        value = value[part]
    return value
