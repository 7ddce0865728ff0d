"""Requests of any dialect, the turns that answer them, and refusals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gspo_lightning.rollouts.gateway.trace import Key, Match, Message, Node, SampledTurn, canonical, ids_of, key_of

if TYPE_CHECKING:
    from gspo_lightning.core.turn import Turn

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
        self.status = status
        self.kind = kind
        self.message = message
        self.code = code
        self.again = again


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
        parse_tool_calls: True if calls in the turn are parsed.
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
    parse_tool_calls: bool = True
    requested: Mapping[str, Any] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    echoed: Mapping[str, Any] = field(default_factory=dict)
    size: int = 0


@dataclass(frozen=True, slots=True)
class ParsedTurn:
    """A turn of the policy whose tokens have been parsed."""

    turn: Turn
    """Content, reasoning and calls."""
    message: dict[str, Any]
    """The same in OpenAI's shape; calls may still have no ids."""
    key: Key
    """Canonical key of the message."""

    @classmethod
    def of(cls, turn: Turn, match: Match) -> ParsedTurn:
        """Return a turn with its message."""
        message: dict[str, Any] = {"role": "assistant", "content": turn.content}
        if turn.reasoning:
            message["reasoning_content"] = turn.reasoning
        if turn.calls:
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": canonical(call.arguments)},
                }
                for call in turn.calls
            ]
        return cls(turn, message, key_of(message, match))


@dataclass(frozen=True, slots=True)
class Served:
    """A turn as it was served."""

    echoed: Mapping[str, Any]
    """Fields of the request that the answer depends on."""
    request_bytes: int
    """Bytes of the request's body."""
    turn: Node
    """The turn in the trace."""
    sampled: SampledTurn
    """Its tokens."""
    content: str
    """Its text, without reasoning and calls."""
    reasoning: str | None
    """The text of its thought; None if it had none."""
    calls: tuple[Mapping[str, Any], ...]
    """Tool calls in OpenAI's shape."""
    finish: str
    """``stop``, ``length`` or ``tool_calls``."""
    model: str
    """Name under which the policy is served."""
    name: str
    """Id of the answer, unique in the gateway."""

    @property
    def context(self) -> tuple[int, ...]:
        """Token ids before the turn."""
        return ids_of(self._context.path)

    @property
    def cached(self) -> int:
        """Tokens of the context that an earlier request of the session had served or sampled."""
        return self._context.end - len(self._context.token_ids)

    @property
    def size(self) -> int:
        """Bytes of the answer, at most."""
        count = len(self.sampled.token_ids)
        ids = 8 * (self._context.end + count) if self.echoed.get("return_token_ids") else 0
        logprobs = 128 * count if ids or self.echoed.get("logprobs") else 0
        texts = (self.content, self.reasoning or "", *(call["function"]["arguments"] for call in self.calls))
        tools = self.request_bytes if "tools" in self.echoed else 0
        return ids + logprobs + 6 * (sum(map(len, texts)) + tools)

    @property
    def _context(self) -> Node:
        assert self.turn.parent is not None
        return self.turn.parent
