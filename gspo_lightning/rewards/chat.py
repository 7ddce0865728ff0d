"""Prompts and completions as lists of chat messages, and the tools of a record."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

from gspo_lightning.core.parsing import load_json
from gspo_lightning.rewards.types import Sample

_MESSAGES = re.compile(r"(list|Sequence)\[\s*(list|Sequence)\b|(list|Sequence)\[\s*\w*[Mm]essages?\b", re.IGNORECASE)


def wants_messages(function: Callable[..., Any]) -> bool:
    """True if a function's annotations say that ``completions`` (or else ``prompts``) are lists of messages.

    >>> def conversational(completions: list[list[dict[str, str]]]) -> list[float]: ...
    >>> def plain(completions: list[str]) -> list[float]: ...
    >>> wants_messages(conversational), wants_messages(plain), wants_messages(lambda completions: [0.0])
    (True, False, False)
    """
    parameters = inspect.signature(function).parameters
    for name in ("completions", "prompts"):
        if name in parameters and (annotation := parameters[name].annotation) is not inspect.Parameter.empty:
            return (
                _MESSAGES.search(annotation if isinstance(annotation, str) else repr(annotation).replace("typing.", ""))
                is not None
            )
    return False


def prompt_messages(sample: Sample) -> list[dict[str, Any]]:
    """Return the messages of a record's prompt; a text prompt becomes one user message."""
    if sample.prompt_messages:
        return [dict(message) for message in sample.prompt_messages]
    return [{"role": "user", "content": sample.prompt}]


def completion_messages(sample: Sample) -> list[dict[str, Any]]:
    """Return the completion as one assistant message, or, of a conversation, all from the first assistant message on.

    >>> completion_messages(Sample("0", "1+1?", "2"))
    [{'role': 'assistant', 'content': '2'}]
    """
    if "environment_reward" in sample.columns and isinstance(messages := sample.columns.get("messages"), list | tuple):
        first = next((i for i, message in enumerate(messages) if message["role"] == "assistant"), len(messages))
        return [dict(message) for message in messages[first:]]
    return [{"role": "assistant", "content": sample.completion}]


def tools_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the chat template's arguments beside the messages: ``tools``, a list of JSON schemas, or nothing.

    The column may hold JSON text. Null fields are left out, because a table gives every tool the fields of all tools.
    Templates read chat completions' shape; tools in that of OpenAI's Responses (no ``function``) are put into it. A
    column of this name with any other content is ignored.

    >>> tools_of({"tools": '[{"type": "function", "function": {"name": "add"}}]'})
    {'tools': [{'type': 'function', 'function': {'name': 'add'}}]}
    >>> tools_of({"tools": [{"name": "add", "strict": None}]}), tools_of({"tools": "saw"}), tools_of({"tools": []})
    ({'tools': [{'name': 'add'}]}, {}, {})
    >>> tools_of({"tools": [{"type": "function", "name": "add", "parameters": {"type": "object"}}]})["tools"]
    [{'type': 'function', 'function': {'name': 'add', 'parameters': {'type': 'object'}}}]
    """
    tools = record.get("tools")
    if isinstance(tools, str):
        try:
            tools = load_json(tools)
        except ValueError:
            return {}
    if not isinstance(tools, list | tuple) or not tools or not all(isinstance(tool, Mapping) for tool in tools):
        return {}
    return {"tools": [_in_function(_without_null(tool)) for tool in tools]}


def _in_function(tool: dict[str, Any]) -> dict[str, Any]:
    flat = "function" not in tool and "name" in tool and (tool.get("type") == "function" or "parameters" in tool)
    return {"type": "function", "function": {k: v for k, v in tool.items() if k != "type"}} if flat else tool


def _without_null(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _without_null(part) for name, part in value.items() if part is not None}
    return [_without_null(part) for part in value] if isinstance(value, list | tuple) else value


def answer_text(content: Any) -> str | None:
    """Return the text of a chat API's answer: a text or its text parts; '' for null, None for anything else.

    >>> answer_text("4"), answer_text([{"type": "text", "text": "4"}]), answer_text(None), answer_text({"a": 4})
    ('4', '4', '', None)
    """
    if isinstance(content, str) or content is None:
        return content or ""
    parts = [part.get("text") for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    texts = [text for text in parts if isinstance(text, str)]
    return "".join(texts) if texts and isinstance(content, list) and len(texts) == len(content) else None
