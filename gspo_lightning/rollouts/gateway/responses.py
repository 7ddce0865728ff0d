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
    wanted = body.get("text")
    shape = wanted.get("format") if isinstance(wanted, Mapping) else None
    return Request(
        [*system, *rest, *_messages(items)], tools, chat.limit(body.get("max_output_tokens")), (),
        bool(body.get("stream")), bool(tools) and body.get("tool_choice") != "none", chat.requested(body),
        chat.ignored({**body, "response_format": shape}), echoed(body),
    )  # fmt: skip


def echoed(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the answer repeats, and what its shape depends on."""
    repeated = {
        "instructions": chat.text(body.get("instructions")) or None,
        "previous_response_id": body.get("previous_response_id"),
    }
    return {**chat.echoed(body), **repeated, "tools": body.get("tools") or []}


def answer(served: Served) -> dict[str, Any]:
    """Return a response with its items: reasoning, a message, calls."""
    name, items = served.name, list[dict[str, Any]]()
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
    cut, body = served.finish == "length", served.echoed
    asked, said = len(served.context), len(served.piece.token_ids)
    details = {
        "input_tokens_details": {"cached_tokens": served.cached},
        "output_tokens_details": {"reasoning_tokens": 0},
    }
    extra = {"token_ids": list(served.piece.token_ids)} if body.get("return_token_ids") else {}
    return {
        "id": name, "object": "response", "created_at": int(time.time()), "model": served.model, "output": items,
        "status": "incomplete" if cut else "completed", "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "instructions": body.get("instructions"), "previous_response_id": body.get("previous_response_id"),
        "parallel_tool_calls": True, "tool_choice": "auto", "tools": body.get("tools") or [], "metadata": {},
        "temperature": None, "top_p": None,
        "usage": {"input_tokens": asked, "output_tokens": said, "total_tokens": asked + said, **details},
        **extra, **chat.tokens(served),
    }  # fmt: skip


def events(served: Served) -> Iterator[Event]:
    """Yield the events of a response, numbered."""
    whole = answer(served)
    empty = whole | {"output": [], "status": "in_progress", "usage": None, "incomplete_details": None}
    kind = "response.incomplete" if whole["incomplete_details"] else "response.completed"
    found: list[dict[str, Any]] = [{"type": "response.created", "response": empty}]
    found.append({"type": "response.in_progress", "response": empty})
    for i, item in enumerate(whole["output"]):
        place = {"item_id": item["id"], "output_index": i}
        begun = item | {key: type(item[key])() for key in ("content", "arguments") if key in item}
        found.append({"type": "response.output_item.added", "output_index": i, "item": begun})
        found += [{**place, **event} for event in _inside(item)]
        found.append({"type": "response.output_item.done", "output_index": i, "item": item})
    found.append({"type": kind, "response": whole})
    for number, event in enumerate(found):
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
    found: list[dict[str, Any]] = []
    ours = False
    for item in items:
        if not isinstance(item, Mapping):
            raise invalid("an item of input must be an object")
        kind = item.get("type", "message")
        if kind == "function_call_output":
            found.append(
                {"role": "tool", "tool_call_id": item.get("call_id"), "content": chat.text(item.get("output"))}
            )
            ours = False
            continue
        mine = kind in ("reasoning", "function_call") or item.get("role") == "assistant"
        if mine and not ours:
            found.append({"role": "assistant", "content": ""})
        ours = mine
        if kind == "reasoning":
            thought = chat.text([part for part in item.get("content") or () if isinstance(part, Mapping)])
            found[-1] |= {"reasoning_content": thought} if thought else {}
        elif kind == "function_call":
            call = {"name": item.get("name"), "arguments": item.get("arguments")}
            made = {"id": item.get("call_id"), "type": "function", "function": call}
            found[-1]["tool_calls"] = [*found[-1].get("tool_calls", ()), made]
        elif kind == "message" and mine:
            found[-1]["content"] += chat.text(item.get("content"))
        elif kind == "message":
            found.append(dict(chat.message(item)))
        else:
            raise invalid(f"items of type {kind!r} are not served here")
    return [chat.message(m) for m in found]
