"""Demonstrations from records: ``prompt`` and ``completion``, or ``messages``. Errors never show record content."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.types import Message
from gspo_lightning.data.prompts.on_demand import Placed
from gspo_lightning.data.prompts.pictures.columns import COLUMNS, has_pictures
from gspo_lightning.data.prompts.prompt_set import Completion, Demonstration, Prompted
from gspo_lightning.rewards.chat import tools_of

_MAP = "map it: demonstrations: {class_path: PromptFile, init_args: {path: ..., columns: {completion: <its name>}}}"
_TEXT_OR_MESSAGES = 'must be a non-empty text, or a list of messages such as {"role": "user", "content": "1+1?"}'


class Demonstrations(Placed[Demonstration]):
    """(prompt, completion) pairs with the file and line of each."""


def read_demonstrations(records: Iterable[Mapping[str, Any]], where: Callable[[int], str]) -> Demonstrations:
    """Read and check all demonstrations.

    A record with ``completion`` needs ``prompt`` as well; each is a text or a list of messages. Any other record needs
    ``messages``: a conversation whose ``assistant`` turns the policy learns to write. The chat template gets ``tools``;
    further columns are not read.

    Args:
        records: in the order of their file.
        where: record number, from 0 -> its place as messages name it.

    Raises:
        UserError: a record is not a demonstration; names its place and the column.
    """
    pairs: list[Demonstration] = []
    for number, record in enumerate(records):
        try:
            pairs.append(_pair(record))
        except MalformedError as error:
            raise UserError(where(number), str(error), fix=error.fix) from None
    return Demonstrations(pairs, where)


class MalformedError(ValueError):
    """A record without the required structure; ``fix`` says what to write instead."""

    def __init__(self, problem: str, fix: str | None = None) -> None:
        super().__init__(problem)
        self.fix = fix


def _pair(record: Mapping[str, Any]) -> Demonstration:
    if record.get("completion") is not None:
        if has_pictures(record):
            question = {name: record[name] for name in ("prompt", *COLUMNS) if record.get(name) is not None}
            prompt: Prompted = question | tools_of(record)
        else:
            prompt = _asked(_text_or_messages(record.get("prompt"), "prompt"), record)
        return prompt, _answered(_text_or_messages(record["completion"], "completion"))
    if record.get("messages") is not None:
        messages = messages_of(record["messages"], "messages")
        first = next((i for i, message in enumerate(messages) if message["role"] == "assistant"), len(messages))
        if not 0 < first < len(messages) or messages[-1]["role"] != "assistant":
            raise MalformedError("'messages' must begin with a question and end with a turn of the assistant")
        return _asked(messages[:first], record), messages[first:]
    present = [name for name, value in record.items() if value is not None]
    columns = ", ".join(sorted(str(name)[:60] for name in present)[:20]) or "no columns"
    raise MalformedError(f"has neither 'prompt' and 'completion' nor 'messages'; it has {columns}", _MAP)


def _asked(prompt: str | list[Message], record: Mapping[str, Any]) -> Prompted:
    tools = tools_of(record)
    return {"prompt": prompt, **tools} if tools else prompt


def _answered(completion: Completion) -> Completion:
    if not isinstance(completion, str) and (completion[0]["role"], completion[-1]["role"]) != ("assistant",) * 2:
        raise MalformedError("'completion' must begin and end with a turn of the assistant")
    return completion


def _text_or_messages(value: Any, column: str) -> str | list[Message]:
    if isinstance(value, str) and value:
        return value
    if isinstance(value, list) and value:
        return messages_of(value, column)
    raise MalformedError(f"{column!r} {_TEXT_OR_MESSAGES}")


def messages_of(value: Any, column: str) -> list[Message]:
    """Return messages without their null fields: a table gives every message the fields of all messages.

    Raises:
        MalformedError: not a list of messages.
    """
    if not isinstance(value, list) or not value:
        raise MalformedError(f"{column!r} must be a list of messages")
    for number, message in enumerate(value, 1):
        if not isinstance(message, Mapping) or not all(isinstance(message.get(k), str) for k in ("role", "content")):
            raise MalformedError(f"{column!r}, message {number}: must have a text as 'role' and one as 'content'")
        if message["role"] == "assistant" and not message["content"]:
            raise MalformedError(f"{column!r}, message {number}: a turn of the assistant is empty")
    return [{k: v for k, v in message.items() if v is not None} for message in value]
