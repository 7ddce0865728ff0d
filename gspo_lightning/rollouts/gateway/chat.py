"""OpenAI's chat completions and completions: requests and answers."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gspo_lightning.rollouts.gateway.bounds import MOST_STOPS, SETTING_CHARACTERS, STOP_CHARACTERS, load, weight
from gspo_lightning.rollouts.gateway.exchange import RefusalError, Request, Served, invalid
from gspo_lightning.rollouts.gateway.trace import Message, text_of

SAMPLING = (
    "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "seed",
    "logit_bias",
)  # fmt: skip
"""Fields of sampling that are recorded and have no effect: the run decides how its policy is sampled."""
Event = tuple[str | None, Mapping[str, Any]]
"""Name and data of a server-sent event."""


def read(body: Mapping[str, Any]) -> Request:
    """Return the request of ``POST /chat/completions``.

    Raises:
        RefusalError: a field has a wrong type, or asks for what the gateway does not do.
    """
    tools = [tool(schema) for schema in listed(body, "tools")]
    return Request(
        messages=[message(m) for m in listed(body, "messages", required=True)],
        tools=tools,
        max_tokens=limit(body.get("max_completion_tokens") or body.get("max_tokens")),
        stop=stops(body.get("stop")),
        stream=bool(body.get("stream")),
        parse_tool_calls=bool(tools) and body.get("tool_choice") != "none",
        requested=requested(body),
        ignored=ignored(body),
        echoed=echoed(body),
    )


def read_completion(body: Mapping[str, Any]) -> Request:
    """Return the request of ``POST /completions``: the prompt is the only message, whose text no template changes."""
    prompt = body.get("prompt")
    if not isinstance(prompt, str) or not prompt:
        raise invalid("prompt must be a text that is not empty")
    return Request(
        messages=[{"role": "prompt", "content": prompt}],
        max_tokens=limit(body.get("max_tokens")),
        stop=stops(body.get("stop")),
        stream=bool(body.get("stream")),
        parse_tool_calls=False,
        requested=requested(body),
        ignored=ignored(body),
        echoed=echoed(body),
    )


def answer(served: Served) -> dict[str, Any]:
    """Return a chat completion."""
    content: dict[str, Any] = {"role": "assistant", "content": served.content or (None if served.calls else "")}
    content |= {"reasoning_content": served.reasoning} if served.reasoning else {}
    content |= {"tool_calls": list(served.calls)} if served.calls else {}
    return _answer(served, "chat.completion", {"message": content})


def answer_completion(served: Served) -> dict[str, Any]:
    """Return a completion."""
    return _answer(served, "text_completion", {"text": served.content})


def events(served: Served) -> Iterator[Event]:
    """Yield the chunks of a chat completion."""
    whole = answer(served)
    choice = whole["choices"][0]
    delta = choice.pop("message")
    calls = [{"index": i, **call} for i, call in enumerate(delta.pop("tool_calls", ()))]
    if calls:
        delta["tool_calls"] = calls
    yield from _chunks(served, whole, "chat.completion.chunk", {"delta": delta})


def events_completion(served: Served) -> Iterator[Event]:
    """Yield the chunks of a completion."""
    yield from _chunks(served, answer_completion(served), "text_completion", {"text": served.content})


def error(refusal: RefusalError) -> dict[str, Any]:
    """Return a refusal in OpenAI's shape."""
    return {"error": {"message": refusal.message, "type": refusal.kind, "param": None, "code": refusal.code}}


def usage(served: Served) -> dict[str, Any]:
    """Return the tokens of a turn."""
    prompt = len(served.context)
    completion = len(served.sampled.token_ids)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": served.cached},
    }


def tokens(served: Served) -> dict[str, Any]:
    """Return the token ids of a turn and the version of its weights, for clients that record them."""
    versions: dict[str, Any] = {"policy_version": served.sampled.version}
    if served.sampled.versions:
        versions["token_versions"] = list(served.sampled.versions)
    if not served.echoed.get("return_token_ids"):
        return versions
    return {"prompt_token_ids": list(served.context), **versions}


def logprobs(served: Served) -> dict[str, Any] | None:
    """Return the log-probabilities of a turn in OpenAI's shape, if they were asked for."""
    requested = served.echoed.get("logprobs") or served.echoed.get("return_token_ids")
    if not requested or served.sampled.logprobs is None:
        return None
    pairs = zip(served.sampled.token_ids, served.sampled.logprobs, strict=True)
    return {
        "content": [{"token": f"token_id:{i}", "logprob": x, "bytes": None, "top_logprobs": []} for i, x in pairs],
        "refusal": None,
    }


def message(value: Any) -> Message:
    """Return a message with text as content and parsed arguments.

    Raises:
        RefusalError: it is no message of text.
    """
    if not isinstance(value, Mapping) or not isinstance(value.get("role"), str):
        raise invalid(f"a message must be an object with a role, got {_shown(value)}")
    read = {**value, "content": text(value.get("content"))}
    calls = value.get("tool_calls") or ()
    if not isinstance(calls, Sequence) or isinstance(calls, str):
        raise invalid(f"tool_calls must be a list, got {_shown(calls)}")
    if calls:
        read["tool_calls"] = [_call(call) for call in calls]
    return read


def text(content: Any) -> str:
    """Return the text of a message's content.

    Raises:
        RefusalError: a part is not text.
    """
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, Sequence):
        raise invalid(f"content must be a text or a list of parts, got {_shown(content)}")
    for part in content:
        if not isinstance(part, str) and not (isinstance(part, Mapping) and isinstance(part.get("text"), str)):
            kind = part.get("type") if isinstance(part, Mapping) else part
            raise invalid(f"only text parts are served here, got {_shown(kind)}")
    return text_of(content)


def tool(value: Any) -> Message:
    """Return a tool's schema.

    Raises:
        RefusalError: it is no function with a name.
    """
    function = value.get("function") if isinstance(value, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise invalid(f"a tool must be {{type: function, function: {{name: ...}}}}, got {_shown(value)}")
    return {"type": "function", "function": dict(function)}


def listed(body: Mapping[str, Any], name: str, *, required: bool = False) -> Sequence[Any]:
    """Return a field that is a list; missing is empty.

    Raises:
        RefusalError: it is no list, or is empty and required.
    """
    value = body.get(name) or ()
    if isinstance(value, str) or not isinstance(value, Sequence) or (required and not value):
        raise invalid(f"{name} must be a list{' with an element' if required else ''}, got {_shown(body.get(name))}")
    return value


def limit(value: Any) -> int | None:
    """Return a limit of tokens.

    Raises:
        RefusalError: it is no whole number above 0.
    """
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        raise invalid(f"a limit of tokens must be a whole number above 0, got {_shown(value)}")
    return value


def stops(value: Any) -> tuple[str, ...]:
    """Return stop texts, given as a text or a list.

    Raises:
        RefusalError: one is empty, too long or no text, or there are too many.
    """
    texts = [value] if isinstance(value, str) else [] if value is None else value
    if not isinstance(texts, list) or not all(isinstance(text, str) and text for text in texts):
        raise invalid(f"stop must be texts that are not empty, got {_shown(value)}")
    if len(texts) > MOST_STOPS or any(len(text) > STOP_CHARACTERS for text in texts):
        raise invalid(f"stop may have {MOST_STOPS} texts of {STOP_CHARACTERS} characters")
    return tuple(texts)


def requested(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the client asked for about sampling; what is too long to record is named only."""
    settings = {name: body[name] for name in SAMPLING if body.get(name) is not None}
    return {name: value if weight(value) <= SETTING_CHARACTERS else "too long" for name, value in settings.items()}


def echoed(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the answer's shape depends on."""
    options = body.get("stream_options")
    usage = isinstance(options, Mapping) and bool(options.get("include_usage"))
    return {
        "return_token_ids": bool(body.get("return_token_ids")),
        "logprobs": bool(body.get("logprobs")),
        "include_usage": usage,
    }


def ignored(body: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of constraints that are not imposed on the policy.

    Raises:
        RefusalError: more than one answer is asked for.
    """
    if body.get("n") not in (None, 1):
        raise invalid("n must be 1: ask again for another answer")
    kind = body.get("response_format")
    constrained = isinstance(kind, Mapping) and kind.get("type") not in (None, "text")
    forced = body.get("tool_choice") not in (None, "auto", "none")
    names = {
        "response_format": constrained,
        "tool_choice": forced,
        "chat_template_kwargs": body.get("chat_template_kwargs"),
    }
    return tuple(name for name, present in names.items() if present)


def _answer(served: Served, kind: str, content: Mapping[str, Any]) -> dict[str, Any]:
    choice = {"index": 0, **content, "finish_reason": served.finish, "logprobs": logprobs(served)}
    if served.echoed.get("return_token_ids"):
        choice["token_ids"] = list(served.sampled.token_ids)
    return {
        "id": served.name, "object": kind, "created": int(time.time()), "model": served.model, "choices": [choice],
        "usage": usage(served), **tokens(served),
    }  # fmt: skip


def _chunks(served: Served, whole: Mapping[str, Any], kind: str, content: Mapping[str, Any]) -> Iterator[Event]:
    """Yield chunks with the content, the end with token ids, and the usage if it is asked for."""
    common = {key: whole[key] for key in ("id", "created", "model")} | {"object": kind}
    yield None, {**common, "choices": [{"index": 0, **content, "finish_reason": None}]}
    last = {key: value for key, value in whole["choices"][0].items() if key not in ("message", "text")}
    last |= dict[str, Any](text="") if kind == "text_completion" else dict[str, Any](delta={})
    yield None, {**common, **tokens(served), "choices": [last]}
    if served.echoed.get("include_usage"):
        yield None, {**common, "choices": [], "usage": whole["usage"]}


def _call(value: Any) -> dict[str, Any]:
    function = value.get("function") if isinstance(value, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise invalid(f"a tool call must have a function with a name, got {_shown(value)}")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        with contextlib.suppress(ValueError, RecursionError):  # a text that a template writes as it is
            arguments = load(arguments or "{}")
    return {**value, "type": "function", "function": {**function, "arguments": arguments}}


def _shown(value: Any) -> str:
    if isinstance(value, str | list | Mapping) and weight(value) > SETTING_CHARACTERS:
        return f"a {type(value).__name__} of {weight(value)} characters"
    written = repr(value)
    return written if len(written) <= 80 else f"{written[:77]}..."
