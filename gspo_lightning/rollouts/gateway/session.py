"""Session of one rollout: its trace, its limits, and the answers it has served."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from gspo_lightning.core.errors import UserError
from gspo_lightning.rollouts.gateway.reward import Told
from gspo_lightning.rollouts.gateway.trace import (
    Encoder,
    Match,
    Message,
    Node,
    Piece,
    Trace,
    TraceError,
    canonical,
    ids_of,
)

if TYPE_CHECKING:
    from gspo_lightning.core.turn import Turn


Phase = Literal["agent", "verify"]
"""Part of a rollout that begins: its conversation, or what the agent does after it."""


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
        super().__init__(message)
        self.status, self.kind, self.message, self.code, self.again = status, kind, message, code, again


def invalid(message: str, code: str | None = None) -> RefusalError:
    """Return a refusal of a request that no retry can mend."""
    return RefusalError(400, "invalid_request_error", message, code)


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
        body: the request as it came.
    """

    messages: Sequence[Message]
    tools: Sequence[Message] = ()
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stream: bool = False
    calls: bool = True
    requested: Mapping[str, Any] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    body: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Served:
    """A turn as it was served."""

    request: Request
    turn: Node
    context: tuple[int, ...]
    piece: Piece
    content: str
    reasoning: str | None
    calls: tuple[Mapping[str, Any], ...]
    finish: str
    model: str
    name: str

    @property
    def cached(self) -> int:
        """Tokens of the context that an earlier request of the session had served or sampled."""
        assert self.turn.parent is not None
        return len(self.context) - len(self.turn.parent.token_ids)


class Codec(Encoder, Protocol):
    """Encoder of messages, and parser of turns."""

    @property
    def longest_token(self) -> int:
        """Characters of the longest token."""

    def parse(
        self, token_ids: Sequence[int], stop: Sequence[str], tools: Sequence[Message], context: Sequence[int] = ()
    ) -> Turn:
        """Return content, reasoning and calls of a turn after a context, up to the first of the stop texts."""


class Sampler(Protocol):
    """Source of turns."""

    async def sample(
        self, session: Session, context: tuple[int, ...], budget: int, stop: tuple[str, ...], place: int
    ) -> Piece:
        """Return what the policy says after a context.

        Args:
            session: whose turn it is.
            context: token ids.
            budget: largest number of tokens, at least 1.
            stop: texts that end the turn.
            place: position of the first random number; differs for every request of a session.
        """


@dataclass(slots=True, eq=False)
class Session:
    """Requests of one rollout.

    Args:
        name: unique among all sessions of the gateway.
        codec: renders messages and parses turns.
        sampler: samples turns.
        longest: tokens of a context and the turn after it.
        max_turns: turns that are served.
        match: comparison of texts.
        payload: whatever the sampler needs to know about the rollout.
    """

    name: str
    codec: Codec
    sampler: Sampler
    longest: int
    max_turns: int = 64
    match: Match = "exact"
    payload: Any = None
    key: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    model: str = "policy"
    reward: float | None = None
    parts: dict[str, float] = field(default_factory=dict)
    full: bool = False
    """True if a request did not fit."""
    fault: BaseException | None = None
    """Failure of the sampler, or a defect of the gateway."""
    closed: bool = False
    """True if no more turns are served."""
    settled: bool = False
    """True if the rollout is over: its reward is final, too."""
    moved: Callable[[Phase], None] | None = None
    """Called when the first turn is asked for, and when the agent ends the conversation."""
    counts: Counter[str] = field(default_factory=Counter)
    malformed_calls: int | None = None
    """Calls of tools that could not be read; None before the first turn with tools."""
    requested: list[Mapping[str, Any]] = field(default_factory=list)
    """Sampling that each turn was asked for; the run's was imposed."""
    begun: float = field(default_factory=time.monotonic)
    trace: Trace = field(init=False)
    _asked: dict[str, asyncio.Task[Served]] = field(default_factory=dict)
    _places: Counter[int] = field(default_factory=Counter)
    _dialogues: dict[str, Sequence[Message]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.trace = Trace(self.codec, self.match)

    def give(self, told: Told) -> None:
        """Store the reward of the rollout; what it leaves out stays as it is.

        Raises:
            ValueError: it has rewards for more turns than there are.
        """
        if len(told.turns) > len(self.trace.turns):
            raise ValueError(f"turns has {len(told.turns)} rewards, and this session {len(self.trace.turns)} turns")
        for turn, value in zip(self.trace.turns, told.turns, strict=False):
            turn.reward = value
        if told.reward is not None or told.turns:
            self.reward = told.reward if told.reward is not None else self.reward or 0.0
        self.parts |= told.parts

    def begin(self, request: Request, key: str, *, again: bool) -> asyncio.Task[Served]:
        """Start to answer a request; a retry gets the recorded answer, or waits for the one in flight.

        Args:
            request: what was asked.
            key: idempotency key, or a hash of the body.
            again: the client says that it may have asked before.
        """
        if not self._asked and self.moved is not None:
            self.moved("agent")
        known = self._asked.get(key)
        if again and known is not None and not (known.done() and (known.cancelled() or known.exception())):
            self.counts["retries"] += 1
            return known
        self._asked[key] = task = asyncio.ensure_future(self._answer(request))
        task.add_done_callback(_seen)
        return task

    def count(self, request: Request) -> int:
        """Return the tokens of a request."""
        return self._rendered(lambda: self.trace.count(request.messages, request.tools), request)

    def messages_before(self, answer: str) -> Sequence[Message]:
        """Return the history that ends with an answer, by the name it was served under.

        Raises:
            RefusalError: there is no such answer.
        """
        if answer not in self._dialogues:
            raise invalid(f"there is no response {answer!r} in this session", "previous_response_not_found")
        return self._dialogues[answer]

    def finish(self) -> None:
        """Serve no more turns; the agent may still verify what it did, and give a reward."""
        if not self.closed and self.moved is not None:
            self.moved("verify")
        self.close()

    def close(self) -> None:
        """Refuse all requests from now on; those in flight are not added to the trace."""
        self.closed = True
        for task in self._asked.values():
            task.cancel()

    async def _answer(self, request: Request) -> Served:
        if self.closed:
            raise gone()
        asked_s = time.monotonic() - self.begun
        for name in request.ignored:
            self.counts[f"ignored/{name}"] += 1
        if len(self.trace.turns) >= self.max_turns:
            raise self._too_long(f"{self.max_turns} turns already")
        node = self._rendered(lambda: self.trace.locate(request.messages, request.tools), request)
        context = ids_of(node.path)
        room = self.longest - len(context)
        if room < 1:
            self.trace.drop(node)
            raise self._too_long(f"{len(context)} tokens, of at most {self.longest}")
        budget = room if request.max_tokens is None else max(1, min(room, request.max_tokens))
        try:
            piece = await self.sampler.sample(self, context, budget, request.stop, self._place(context))
        except Exception as error:
            self.fault = self.fault or error
            raise RefusalError(500, "server_error", f"no turn was sampled: {type(error).__name__}") from error
        if self.closed:
            raise gone()
        served = self._commit(request, node, context, piece)
        served.turn.asked_s, served.turn.answered_s = asked_s, time.monotonic() - self.begun
        return served

    def _commit(self, request: Request, node: Node, context: tuple[int, ...], piece: Piece) -> Served:
        order = len(self.trace.turns)
        parsed = self.codec.parse(piece.token_ids, request.stop, request.tools if request.calls else (), context)
        if request.calls and request.tools:
            self.malformed_calls = (self.malformed_calls or 0) + parsed.malformed
        calls = tuple(
            {
                "id": call.id or f"call_{order}_{i}",
                "type": "function",
                "function": {"name": call.name, "arguments": canonical(call.arguments)},
            }
            for i, call in enumerate(parsed.calls)
        )
        message: dict[str, Any] = {"role": "assistant", "content": parsed.content}
        message |= {"reasoning_content": parsed.reasoning} if parsed.reasoning else {}
        message |= {"tool_calls": list(calls)} if calls else {}
        try:
            turn = self.trace.say(node, context, piece, message)
        except TraceError as error:
            self.fault = error
            raise
        self.requested.append(request.requested)
        finish = "length" if piece.truncated else "tool_calls" if calls else "stop"
        name = f"{self.name}_{order}"
        self._dialogues[name] = [*request.messages, message]
        return Served(request, turn, context, piece, parsed.content, parsed.reasoning, calls, finish, self.model, name)

    def _rendered(self, render: Callable[[], Any], request: Request) -> Any:
        """Return what rendering gives.

        Raises:
            RefusalError: the messages are too long to be rendered while others wait, or cannot be expressed.
        """
        characters = sum(len(str(message.get("content") or "")) for message in request.messages)
        if characters > self.longest * self.codec.longest_token:
            raise self._too_long(f"{characters} characters, more than {self.longest} tokens can have")
        try:
            return render()
        except UserError as error:
            self.counts["unrendered"] += 1
            raise invalid(str(error), "cannot_render") from error
        except RecursionError as error:
            raise invalid("an object in it is nested too deeply") from error

    def _too_long(self, what: str) -> RefusalError:
        self.full = True
        return invalid(f"maximum context length: this conversation has {what}", "context_length_exceeded")

    def _place(self, context: tuple[int, ...]) -> int:
        """Return a position of random numbers that depends on the context, and on how often it was asked about."""
        digest = int.from_bytes(hashlib.blake2b(repr(context).encode(), digest_size=8).digest(), "big")
        self._places[digest] += 1
        return (digest + self._places[digest] * 0x9E3779B97F4A7C15) % (1 << 52)


def gone() -> RefusalError:
    """Return the answer to a request in a session that is over."""
    return RefusalError(409, "conflict_error", "this session is closed: its rollout is over", "session_closed")


def _seen(task: asyncio.Task[Served]) -> None:
    """Look at a task's exception: a client that is gone leaves nobody who does."""
    if not task.cancelled():
        task.exception()
