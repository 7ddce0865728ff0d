"""Preference pairs from records, in TRL's format: ``chosen`` and ``rejected``, with or without a ``prompt``.

A message names the record and the column, never their content: records may be private.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.types import Message
from gspo_lightning.data.prompts.demonstrations import MalformedError, messages_of
from gspo_lightning.data.prompts.on_demand import Placed
from gspo_lightning.rewards.chat import tools_of

Side = str | tuple[Message, ...]
"""One answer: a text, or messages."""
_MAP = "map it: data.columns: {chosen: <its name>, rejected: <its name>}"
_FORMS = 'must be a text, or a list of messages such as {"role": "assistant", "content": "2"}'


@dataclass(frozen=True, slots=True)
class Pair:
    """Two answers to one prompt; ``chosen`` was preferred by at least ``margin`` (reward units).

    ``prompt`` is None if it is a text at the beginning of both answers. Messages are always split: the prompt ends
    before the last message. ``key`` is the same for all pairs of one prompt.
    """

    prompt: Side | None
    chosen: Side
    rejected: Side
    margin: float
    key: str
    tools: Mapping[str, Any] = field(default_factory=dict)
    """Options of the chat template besides messages: ``tools`` of the record, if it has any."""

    @property
    def conversational(self) -> bool:
        """True if the answers are messages, which need a chat template."""
        return not isinstance(self.chosen, str)


class Preferences(Placed[Pair]):
    """Preference pairs with the place of each."""


def read_preferences(records: Iterable[Mapping[str, Any]], where: Callable[[int], str]) -> Preferences:
    """Read and check all pairs.

    ``chosen`` and ``rejected`` are both texts or both lists of messages. With a column ``prompt`` of the same form they
    are the answers alone. Without one (or with a text that their messages hold) both include the prompt. A column
    ``margin`` may say by how much the chosen answer is better. The chat template gets ``tools``. Further columns are
    not read.

    Args:
        records: in the order of their file.
        where: record number, from 0 -> its place as messages name it.

    Raises:
        UserError: a record is not a pair; names its place and the column.
    """
    pairs: list[Pair] = []
    for number, record in enumerate(records):
        try:
            pairs.append(replace(_pair(record, number), tools=tools_of(record)))
        except MalformedError as error:
            raise UserError(where(number), str(error), fix=error.fix) from None
    return Preferences(pairs, where)


def _pair(record: Mapping[str, Any], number: int) -> Pair:
    for column in ("chosen", "rejected"):
        if record.get(column) is None:
            present = [str(name)[:60] for name, value in record.items() if value is not None]
            columns = ", ".join(sorted(present)[:20]) or "no columns"
            raise MalformedError(f"has no column {column!r}; it has {columns}", _MAP)
    chosen, rejected = (_side(record[column], column) for column in ("chosen", "rejected"))
    if isinstance(chosen, str) is not isinstance(rejected, str):
        raise MalformedError("'chosen' and 'rejected' must both be texts, or both lists of messages")
    margin = _margin(record.get("margin"))
    prompt = None if record.get("prompt") is None else _side(record["prompt"], "prompt")
    if isinstance(chosen, str) or isinstance(rejected, str):
        assert isinstance(chosen, str) and isinstance(rejected, str)  # noqa: PT018 (for the type checker)
        if prompt is not None and not isinstance(prompt, str):
            raise MalformedError("'prompt' is a list of messages, but the answers are texts", "give all in one form")
        return Pair(prompt, chosen, rejected, margin, f"record {number}" if prompt is None else prompt)
    if prompt is None or isinstance(prompt, str):
        return _split(prompt, chosen, rejected, margin)
    return Pair(prompt, chosen, rejected, margin, _key(prompt))


def _split(text: str | None, chosen: tuple[Message, ...], rejected: tuple[Message, ...], margin: float) -> Pair:
    """Split a pair of whole conversations, equal up to their last message."""
    prompt = chosen[:-1]
    questions = [message["content"] for message in prompt if message["role"] == "user"]
    if text is not None and text not in questions:
        problem = "'prompt' is a text, but 'chosen' is messages that do not hold it"
        raise MalformedError(problem, "give the prompt as messages, too, or leave it out")
    if not prompt or prompt != rejected[:-1]:
        problem = "without a prompt of messages, 'chosen' and 'rejected' must be the same up to their last message"
        raise MalformedError(problem, "give the common messages as 'prompt', and in the answers what follows them")
    return Pair(prompt, chosen[-1:], rejected[-1:], margin, _key(prompt))


def _side(value: Any, column: str) -> Side:
    if isinstance(value, str):
        if not value and column == "prompt":
            raise MalformedError("'prompt' is empty", "leave the column out")
        return value
    if isinstance(value, list | tuple) and value:
        return tuple(messages_of(list(value), column))
    raise MalformedError(f"{column!r} {_FORMS}")


def _margin(value: Any) -> float:
    """Return the margin; 0 if there is none. Cells of a table are texts."""
    if value is None or value == "":
        return 0.0
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise MalformedError("'margin' must be a finite number", "write one, or null where there is none")
    return number


def _key(messages: Sequence[Message]) -> str:
    return json.dumps([dict(message) for message in messages], sort_keys=True, default=str)
