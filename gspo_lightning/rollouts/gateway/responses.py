"""OpenAI's responses: requests and answers."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gspo_lightning.rollouts.gateway import chat
from gspo_lightning.rollouts.gateway.chat import Event
from gspo_lightning.rollouts.gateway.exchange import Request, Served, invalid
from gspo_lightning.rollouts.gateway.trace import Message


def read(body: Mapping[str, Any], before: Sequence[Message] = ()) -> Request:
    """Return the request of ``POST /responses``.

    Args:
        body: of the request.
        before: the history that ``previous_response_id`` stands for.

    Raises:
        RefusalError: a field has a wrong type, or asks for what the gateway does not do.
    """
    given = body.get("input")
    items = (
        [{"role": "user", "content": given}] if isinstance(given, str) else chat.listed(body, "input", required=True)
    )
    instructions = chat.text(body.get("instructions"))
    system = [{"role": "system", "content": instructions}] if instructions else []
    rest = before[1:] if system and before and before[0]["role"] == "system" else before
    tools = [_tool(t) for t in chat.listed(body, "tools")]
    options = body.get("text")
    shape = options.get("format") if isinstance(options, Mapping) else None
    return Request(
        messages=[*system, *rest, *_messages(items)],
        tools=tools,
        max_tokens=chat.limit(body.get("max_output_tokens")),
        stream=bool(body.get("stream")),
        parse_tool_calls=bool(tools) and body.get("tool_choice") != "none",
        requested=chat.requested(body),
        ignored=chat.ignored({**body, "response_format": shape}),
        echoed=echoed(body),
    )


def echoed(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the answer repeats, and what its shape depends on."""
    repeated = {
        "instructions": chat.text(body.get("instructions")) or None,
        "previous_response_id": body.get("previous_response_id"),
    }
    return {**chat.echoed(body), **repeated, "tools": body.get("tools") or []}


def answer(served: Served) -> dict[str, Any]:
    """Return a response with its items: reasoning, a message, calls."""
    name = served.name
    items: list[dict[str, Any]] = []
    if served.reasoning:
        part: dict[str, Any] = {"type": "reasoning_text", "text": served.reasoning}
        items.append({"type": "reasoning", "id": f"rs_{name}", "summary": [], "content": [part]})
    if served.content or not served.calls:
        part = {"type": "output_text", "text": served.content, "annotations": [], "logprobs": []}
        items.append(
            {"type": "message", "id": f"msg_{name}", "role": "assistant", "status": "completed", "content": [part]}
        )
    for call in served.calls:
        function = {"call_id": call["id"], **call["function"], "status": "completed"}
        items.append({"type": "function_call", "id": f"fc_{call['id']}", **function})
    cut = served.finish == "length"
    body = served.echoed
    read = len(served.context)
    sampled = len(served.sampled.token_ids)
    usage = {
        "input_tokens": read,
        "output_tokens": sampled,
        "total_tokens": read + sampled,
        "input_tokens_details": {"cached_tokens": served.cached},
        "output_tokens_details": {"reasoning_tokens": 0},
    }
    extra = {"token_ids": list(served.sampled.token_ids)} if body.get("return_token_ids") else {}
    return {
        "id": name, "object": "response", "created_at": int(time.time()), "model": served.model, "output": items,
        "status": "incomplete" if cut else "completed", "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "instructions": body.get("instructions"), "previous_response_id": body.get("previous_response_id"),
        "parallel_tool_calls": True, "tool_choice": "auto", "tools": body.get("tools") or [], "metadata": {},
        "temperature": None, "top_p": None, "usage": usage, **extra,
        **chat.tokens(served),
    }  # fmt: skip


def events(served: Served) -> Iterator[Event]:
    """Yield the events of a response, numbered."""
    whole = answer(served)
    empty = whole | {"output": [], "status": "in_progress", "usage": None, "incomplete_details": None}
    kind = "response.incomplete" if whole["incomplete_details"] else "response.completed"
    stream: list[dict[str, Any]] = [{"type": "response.created", "response": empty}]
    stream.append({"type": "response.in_progress", "response": empty})
    for i, item in enumerate(whole["output"]):
        place = {"item_id": item["id"], "output_index": i}
        begun = item | {key: type(item[key])() for key in ("content", "arguments") if key in item}
        stream.append({"type": "response.output_item.added", "output_index": i, "item": begun})
        stream += [{**place, **event} for event in _inside(item)]
        stream.append({"type": "response.output_item.done", "output_index": i, "item": item})
    stream.append({"type": kind, "response": whole})
    for number, event in enumerate(stream):
        yield event["type"], {**event, "sequence_number": number}


def _inside(item: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    if item["type"] == "message":
        (part,) = item["content"]
        text = {"content_index": 0, "logprobs": []}
        yield {"type": "response.content_part.added", "content_index": 0, "part": {**part, "text": ""}}
        yield {"type": "response.output_text.delta", "delta": part["text"], **text}
        yield {"type": "response.output_text.done", "text": part["text"], **text}
        yield {"type": "response.content_part.done", "content_index": 0, "part": part}
    elif item["type"] == "function_call":
        yield {"type": "response.function_call_arguments.delta", "delta": item["arguments"]}
        done = {"arguments": item["arguments"], "name": item["name"]}
        yield {"type": "response.function_call_arguments.done", **done}


def _tool(value: Any) -> Message:
    if not isinstance(value, Mapping) or value.get("type") != "function":
        kind = value.get("type") if isinstance(value, Mapping) else value
        raise invalid(f"only tools of type function are served here, got {kind!r}")
    return chat.tool({"type": "function", "function": {k: v for k, v in value.items() if k != "type"}})


def _messages(items: Sequence[Any]) -> list[Message]:
    """Return items as messages; what the policy said in one turn becomes one message again."""
    messages: list[dict[str, Any]] = []
    in_turn = False  # while the last message is a turn of the policy that may go on
    for item in items:
        if not isinstance(item, Mapping):
            raise invalid("an item of input must be an object")
        kind = item.get("type", "message")
        of_policy = kind in ("reasoning", "function_call") or (
            kind != "function_call_output" and item.get("role") == "assistant"
        )
        if of_policy and not in_turn:
            messages.append({"role": "assistant", "content": ""})
        in_turn = of_policy
        if kind == "function_call_output":
            output = chat.text(item.get("output"))
            messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": output})
        elif kind == "reasoning":
            thought = chat.text([part for part in item.get("content") or () if isinstance(part, Mapping)])
            if thought:
                messages[-1]["reasoning_content"] = thought
        elif kind == "function_call":
            function = {"name": item.get("name"), "arguments": item.get("arguments")}
            call = {"id": item.get("call_id"), "type": "function", "function": function}
            messages[-1]["tool_calls"] = [*messages[-1].get("tool_calls", ()), call]
        elif kind == "message" and of_policy:
            messages[-1]["content"] += chat.text(item.get("content"))
        elif kind == "message":
            messages.append(dict(chat.message(item)))
        else:
            raise invalid(f"items of type {kind!r} are not served here")
    return [chat.message(message) for message in messages]
