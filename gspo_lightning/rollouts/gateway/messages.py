"""Anthropic's messages: requests and answers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from gspo_lightning.rollouts.gateway import chat
from gspo_lightning.rollouts.gateway.chat import Event
from gspo_lightning.rollouts.gateway.exchange import RefusalError, Request, Served, invalid
from gspo_lightning.rollouts.gateway.trace import Message

_FINISH = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
_BLOCKS = ("text", "thinking", "redacted_thinking", "tool_use", "tool_result")
_KINDS = {
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
}


def read(body: Mapping[str, Any]) -> Request:
    """Return the request of ``POST /messages``.

    Raises:
        RefusalError: a field has a wrong type, or asks for what the gateway does not do.
    """
    system = chat.text(body.get("system"))
    messages = [{"role": "system", "content": system}] if system else []
    for message in chat.listed(body, "messages", required=True):
        messages += _messages(message)
    tools = [_tool(t) for t in chat.listed(body, "tools")]
    choice = body.get("tool_choice") or {}
    kind = choice.get("type") if isinstance(choice, Mapping) else choice
    return Request(
        messages=messages,
        tools=tools,
        max_tokens=chat.limit(body.get("max_tokens")),
        stop=chat.stops(body.get("stop_sequences")),
        stream=bool(body.get("stream")),
        parse_tool_calls=bool(tools) and kind != "none",
        requested=chat.requested(body),
        ignored=() if kind in (None, "auto", "none") else ("tool_choice",),
        echoed=chat.echoed(body),
    )


def answer(served: Served) -> dict[str, Any]:
    """Return a message."""
    blocks: list[dict[str, Any]] = []
    if served.reasoning:
        blocks.append({"type": "thinking", "thinking": served.reasoning, "signature": ""})
    if served.content or not served.calls:
        blocks.append({"type": "text", "text": served.content})
    for call in served.calls:
        function = call["function"]
        arguments = json.loads(function["arguments"])
        blocks.append({"type": "tool_use", "id": call["id"], "name": function["name"], "input": arguments})
    extra = {"token_ids": list(served.sampled.token_ids)} if served.echoed.get("return_token_ids") else {}
    return {
        "id": served.name, "type": "message", "role": "assistant", "model": served.model, "content": blocks,
        "stop_reason": _FINISH[served.finish], "stop_sequence": None, "usage": _usage(served), **extra,
        **chat.tokens(served),
    }  # fmt: skip


def events(served: Served) -> Iterator[Event]:
    """Yield the events of a message: its beginning, each block, its end."""
    whole = answer(served)
    beginning = whole | {"content": [], "stop_reason": None, "usage": whole["usage"] | {"output_tokens": 0}}
    yield "message_start", {"type": "message_start", "message": beginning}
    for i, block in enumerate(whole["content"]):
        empty, deltas = _deltas(block)
        yield "content_block_start", {"type": "content_block_start", "index": i, "content_block": empty}
        for delta in deltas:
            yield "content_block_delta", {"type": "content_block_delta", "index": i, "delta": delta}
        yield "content_block_stop", {"type": "content_block_stop", "index": i}
    end = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    yield "message_delta", {"type": "message_delta", "delta": end, "usage": whole["usage"]}
    yield "message_stop", {"type": "message_stop"}


def error(refusal: RefusalError) -> dict[str, Any]:
    """Return a refusal in Anthropic's shape."""
    kind = _KINDS.get(refusal.status, "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": refusal.message}}


def _usage(served: Served) -> dict[str, Any]:
    read_before = served.cached
    return {
        "input_tokens": len(served.context) - read_before,
        "output_tokens": len(served.sampled.token_ids),
        "cache_read_input_tokens": read_before,
        "cache_creation_input_tokens": 0,
    }


def _deltas(block: Mapping[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return a block without its content, and the content."""
    if block["type"] == "text":
        return {"type": "text", "text": ""}, [{"type": "text_delta", "text": block["text"]}]
    if block["type"] == "thinking":
        deltas = [
            {"type": "thinking_delta", "thinking": block["thinking"]},
            {"type": "signature_delta", "signature": ""},
        ]
        return {"type": "thinking", "thinking": "", "signature": ""}, deltas
    return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": json.dumps(block["input"])}]


def _tool(value: Any) -> Message:
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
        raise invalid("a tool must be an object with a name and an input_schema")
    function = {"name": value["name"], "description": value.get("description") or ""}
    return {"type": "function", "function": function | {"parameters": value.get("input_schema") or {}}}


def _messages(value: Any) -> list[dict[str, Any]]:
    """Return one message of blocks as messages in OpenAI's shape: results of tools first, then the text."""
    if not isinstance(value, Mapping) or value.get("role") not in ("user", "assistant", "system"):
        raise invalid("a message must be an object with the role user or assistant")
    content = value.get("content")
    if content is None or isinstance(content, str):
        return [{"role": value["role"], "content": content or ""}]
    blocks = chat.listed(value, "content")
    if not all(isinstance(block, Mapping) for block in blocks):
        raise invalid("content must be a text or a list of blocks")
    for block in blocks:
        if block.get("type") not in _BLOCKS:
            raise invalid(f"only text, thinking, tool_use and tool_result are served here, got {block.get('type')!r}")
    results: list[dict[str, Any]] = [
        {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": chat.text(block.get("content"))}
        for block in blocks
        if block["type"] == "tool_result"
    ]
    message: dict[str, Any] = {"role": value["role"], "content": chat.text([b for b in blocks if b["type"] == "text"])}
    thoughts = [str(block.get("thinking", "")) for block in blocks if block["type"] == "thinking"]
    if thoughts:
        message["reasoning_content"] = "".join(thoughts)
    calls = [_use(block) for block in blocks if block["type"] == "tool_use"]
    if calls:
        message["tool_calls"] = calls
    return results if results and not message["content"] else [*results, message]


def _use(block: Mapping[str, Any]) -> dict[str, Any]:
    function = {"name": str(block.get("name")), "arguments": block.get("input") or {}}
    return {"id": block.get("id"), "type": "function", "function": function}
