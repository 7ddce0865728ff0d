"""Chat messages of clients (OpenAI's shape) in the shapes that chat templates accept."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from gspo_lightning.core.escape import whole_values
from gspo_lightning.core.parsing import load_json
from gspo_lightning.core.types import Message
from gspo_lightning.rewards.chat import answer_text

_Calls = list[dict[str, Any]]


def plain_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return messages for a template: one text each, arguments as objects, tool results in the order of their calls.

    ``content`` may be a text, a list of text parts or null; arguments may be JSON text. A tool result gets the name of
    its call. Null fields and empty lists of calls are left out, because templates ask whether a field is there.

    Raises:
        ValueError: a content is none of these; the message names its kind.

    >>> call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    >>> said = [{"role": "assistant", "content": None, "tool_calls": [call]}]
    >>> plain_messages([*said, {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "2"}]}])[1]
    {'role': 'tool', 'tool_call_id': '1', 'content': '2', 'name': 'add'}
    """
    converted: list[dict[str, Any]] = []
    calls: _Calls = []
    results: list[dict[str, Any]] = []
    for message in messages:
        plain = _plain(message)
        if plain["role"] == "tool":
            results.append(plain)
            continue
        converted += _in_order(results, calls)
        calls = plain.get("tool_calls", [])
        results = []
        converted.append(plain)
    return converted + _in_order(results, calls)


def variants(messages: Sequence[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Yield the messages in the shapes that families of templates want; all but the first only with calls or results.

    DeepSeek's templates write arguments that are JSON text, Mistral's want ids of nine letters and digits, and Hermes'
    a name with every result.
    """
    yield list(messages)
    if any("tool_calls" in m or m["role"] == "tool" for m in messages):
        for change in (_with_text, _with_short_ids, lambda m: _with_short_ids(_with_text(m)), _with_name):
            yield [change(m) for m in messages]


def placeholder_calls(
    results: Sequence[Message], calls: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], argument: str
) -> _Calls:
    """Return the calls of a placeholder turn before ``results``; the last one has ``argument`` as its only argument.

    Their names and ids are those of ``calls`` if given, else what the results say; a single tool is the one called.
    """
    default = str(tools[0].get("function", tools[0]).get("name", "tool")) if len(tools) == 1 else "tool"
    if calls:
        ids_and_names = [(call.get("id", ""), call.get("function", call).get("name", default)) for call in calls]
    else:
        ids_and_names = [(result.get("tool_call_id", ""), result.get("name", default)) for result in results]
    placeholders: _Calls = []
    for call_id, name in ids_and_names:
        call = {"type": "function", "function": {"name": name, "arguments": {"a": "."}}}
        placeholders.append(call | ({"id": call_id} if call_id else {}))
    placeholders[-1]["function"]["arguments"] = {"a": argument}
    return placeholders


def _plain(message: Message) -> dict[str, Any]:
    text = answer_text(message.get("content"))
    if text is None:
        parts = message["content"] if isinstance(message["content"], list) else [message["content"]]
        kinds = {str(part.get("type", part)) if isinstance(part, Mapping) else type(part).__name__ for part in parts}
        raise ValueError(f"a message's content has {', '.join(sorted(kinds - {'text'}))}; only text can be read")
    role = "system" if message["role"] == "developer" else message["role"]  # Qwen's templates leave a developer out
    plain = {k: v for k, v in message.items() if v is not None} | {"role": role, "content": text}
    if not plain.get("tool_calls"):
        plain.pop("tool_calls", None)
        return plain
    calls = []
    for call in plain["tool_calls"]:
        function = call.get("function", call)
        arguments = _object(function.get("arguments", {}))
        plain_call = {"type": "function", "function": {"name": function["name"], "arguments": arguments}}
        calls.append(plain_call | ({"id": call["id"]} if call.get("id") else {}))
    plain["tool_calls"] = calls
    return plain


def _object(arguments: Any) -> Any:
    if not isinstance(arguments, str):
        return arguments
    try:
        parsed = whole_values(load_json(arguments or "{}"))
    except (ValueError, RecursionError):
        return arguments
    return parsed if isinstance(parsed, dict) else arguments


def _in_order(results: list[dict[str, Any]], calls: _Calls) -> list[dict[str, Any]]:
    """Return tool results in the order of their calls, named after them; most templates write no ids."""
    places = {call["id"]: i for i, call in enumerate(calls) if "id" in call}
    ordered = sorted(results, key=lambda m: places.get(m.get("tool_call_id"), len(calls)))
    for i, result in enumerate(ordered):
        place = places.get(result.get("tool_call_id"))
        if place is None and "tool_call_id" not in result and i < len(calls):
            place = i  # without ids, results are in the order of the calls
        if place is not None:
            result.setdefault("name", calls[place]["function"]["name"])
            if "id" in calls[place]:
                result.setdefault("tool_call_id", calls[place]["id"])
    return ordered


def _with_text(message: dict[str, Any]) -> dict[str, Any]:
    def with_text(_: int, call: dict[str, Any]) -> dict[str, Any]:
        arguments = call["function"]["arguments"]
        if isinstance(arguments, str):
            return call
        return call | {"function": call["function"] | {"arguments": json.dumps(arguments, ensure_ascii=False)}}

    return _with_calls(message, with_text)


def _with_short_ids(message: dict[str, Any]) -> dict[str, Any]:
    if message["role"] == "tool":
        return message | {"tool_call_id": _short(message.get("tool_call_id", "0"))}
    return _with_calls(message, lambda i, call: call | {"id": _short(call.get("id", str(i)))})


def _with_name(message: dict[str, Any]) -> dict[str, Any]:
    return {"name": "tool", **message} if message["role"] == "tool" else message


def _with_calls(message: dict[str, Any], change: Callable[[int, dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
    if "tool_calls" not in message:
        return message
    return message | {"tool_calls": [change(i, call) for i, call in enumerate(message["tool_calls"])]}


def _short(name: str) -> str:
    return name if len(name) == 9 and name.isalnum() else hashlib.sha256(name.encode()).hexdigest()[:9]
