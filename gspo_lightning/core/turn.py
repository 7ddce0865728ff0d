"""A turn of the policy as its reader sees it: content, reasoning and tool calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call of a tool. ``id`` is what the policy wrote, if its format has ids (Mistral), else empty."""

    name: str
    arguments: Mapping[str, Any]
    id: str = ""


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of the policy.

    ``malformed`` counts calls that could not be read; the text of such a turn is its ``content``, and it has no calls.
    """

    content: str
    reasoning: str | None = None
    calls: tuple[ToolCall, ...] = ()
    malformed: int = 0


def assistant_message(turn: Turn) -> dict[str, Any]:
    """Return a turn as a message in OpenAI's shape, its arguments as objects.

    >>> assistant_message(Turn("", None, (ToolCall("add", {"a": 1}, "call00000"),)))["tool_calls"]
    [{'id': 'call00000', 'type': 'function', 'function': {'name': 'add', 'arguments': {'a': 1}}}]
    """
    message: dict[str, Any] = {"role": "assistant", "content": turn.content}
    if turn.reasoning is not None:
        message["reasoning_content"] = turn.reasoning
    if turn.calls:
        message["tool_calls"] = [
            {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": dict(c.arguments)}}
            for c in turn.calls
        ]
    return message
