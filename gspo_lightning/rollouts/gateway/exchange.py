"""Requests of any dialect, the turns that answer them, and refusals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gspo_lightning.rollouts.gateway.trace import Message, Node, Piece, ids_of

_WORDS = 1000
"""Characters of a message, which may quote what was sent."""


class RefusalError(Exception):
    """Answer other than 200.

    Args:
        status: of HTTP.
        kind: error type in OpenAI's words.
        message: for people.
        code: for programs.
        again: True if the same request may succeed later.
    """

    def __init__(self, status: int, kind: str, message: str, code: str | None = None, *, again: bool = False) -> None:
        message = message[:_WORDS]
        super().__init__(message)
        self.status, self.kind, self.message, self.code, self.again = status, kind, message, code, again


def invalid(message: str, code: str | None = None) -> RefusalError:
    """Return a refusal of a request that no retry can mend."""
    return RefusalError(400, "invalid_request_error", message, code)


def gone() -> RefusalError:
    """Return the answer to a request in a session that is over."""
    return RefusalError(409, "conflict_error", "this session is closed: its rollout is over", "session_closed")


def busy(what: str) -> RefusalError:
    """Return the answer to a session that asks for too much at once; SDKs ask again later."""
    return RefusalError(429, "rate_limit_error", f"a session may have {what}", "too_many_requests", again=True)


@dataclass(frozen=True, slots=True)
class Request:
    """A request of any dialect.

    Args:
        messages: in OpenAI's shape.
        tools: JSON schemas in OpenAI's shape.
        max_tokens: limit of this turn, or None.
        stop: texts that end the turn and are left out of the answer.
        stream: frame the answer as server-sent events.
        calls: parse tool calls.
        requested: sampling that the client asked for.
        ignored: names of other fields that were asked for and have no effect.
        echoed: fields of the body that the answer depends on.
        size: bytes of the body; a large one is handled in a thread.
    """

    messages: Sequence[Message]
    tools: Sequence[Message] = ()
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stream: bool = False
    calls: bool = True
    requested: Mapping[str, Any] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    echoed: Mapping[str, Any] = field(default_factory=dict)
    size: int = 0


@dataclass(frozen=True, slots=True)
class Served:
    """A turn as it was served; ``echoed`` and ``asked_bytes`` are of its request."""

    echoed: Mapping[str, Any]
    asked_bytes: int
    turn: Node
    piece: Piece
    content: str
    reasoning: str | None
    calls: tuple[Mapping[str, Any], ...]
    finish: str
    model: str
    name: str

    @property
    def context(self) -> tuple[int, ...]:
        """Token ids before the turn."""
        return ids_of(self._given.path)

    @property
    def cached(self) -> int:
        """Tokens of the context that an earlier request of the session had served or sampled."""
        return self._given.end - len(self._given.token_ids)

    @property
    def size(self) -> int:
        """Bytes of the answer, at most."""
        count = len(self.piece.token_ids)
        ids = 8 * (self._given.end + count) if self.echoed.get("return_token_ids") else 0
        logprobs = 128 * count if ids or self.echoed.get("logprobs") else 0
        said = (self.content, self.reasoning or "", *(call["function"]["arguments"] for call in self.calls))
        return ids + logprobs + 6 * (sum(map(len, said)) + (self.asked_bytes if "tools" in self.echoed else 0))

    @property
    def _given(self) -> Node:
        assert self.turn.parent is not None
        return self.turn.parent
