"""Dialects of the gateway's routes: how each reads a request, and writes an answer, a stream and a refusal."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gspo_lightning.rollouts.gateway import chat, messages, responses
from gspo_lightning.rollouts.gateway.bounds import counted_values, load
from gspo_lightning.rollouts.gateway.exchange import RefusalError, Request, Served, invalid
from gspo_lightning.rollouts.gateway.session import Session


@dataclass(frozen=True, slots=True)
class Dialect:
    """Functions of one dialect; ``done`` ends its streams."""

    read: Callable[[Mapping[str, Any]], Request]
    answer: Callable[[Served], Mapping[str, Any]]
    events: Callable[[Served], Iterator[chat.Event]]
    error: Callable[[RefusalError], Mapping[str, Any]] = chat.error
    done: bytes = b""


CHAT = Dialect(chat.read, chat.answer, chat.events, done=b"data: [DONE]\n\n")
COMPLETIONS = Dialect(chat.read_completion, chat.answer_completion, chat.events_completion, done=b"data: [DONE]\n\n")
MESSAGES = Dialect(messages.read, messages.answer, messages.events, messages.error)
RESPONSES = Dialect(responses.read, responses.answer, responses.events)


def read_request(dialect: Dialect, raw: bytearray, session: Session, path: str) -> tuple[Request, str]:
    """Return the request of a body, and a digest of both.

    Raises:
        RefusalError: a field is not what the dialect says.
    """
    digest = hashlib.blake2b(path.encode() + b"\n", digest_size=16)
    digest.update(raw)
    with counted_values():
        body = read_object(raw)
        try:
            if dialect is RESPONSES and (before := body.get("previous_response_id")):
                request = responses.read(body, session.messages_before(str(before)))
            else:
                request = dialect.read(body)
        except (TypeError, ValueError, LookupError, AttributeError, RecursionError) as error:
            raise invalid(f"the request cannot be read: {type(error).__name__}: {str(error)[:200]}") from error
    return replace(request, size=len(raw)), digest.hexdigest()


def read_object(raw: bytearray) -> Mapping[str, Any]:
    """Return the object of a body.

    Raises:
        RefusalError: it is no JSON object.
    """
    try:
        body = load(raw)
    except (ValueError, RecursionError) as error:
        raise invalid(f"the body is not JSON: {str(error)[:200]}") from error
    if not isinstance(body, dict):
        raise invalid(f"the body must be a JSON object, and is a {type(body).__name__}")
    return body


def answered(dialect: Dialect, served: Served) -> bytes:
    """Return an answer as JSON."""
    return json.dumps(dialect.answer(served)).encode()


def framed(dialect: Dialect, served: Served) -> bytes:
    """Return an answer as server-sent events."""
    return b"".join(frame(name, data) for name, data in dialect.events(served)) + dialect.done


def frame(name: str | None, data: Mapping[str, Any]) -> bytes:
    """Return a server-sent event."""
    head = b"" if name is None else f"event: {name}\n".encode()
    return head + b"data: " + json.dumps(data).encode() + b"\n\n"
