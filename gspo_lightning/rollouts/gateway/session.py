"""Session of one rollout: its trace, its limits, and the answers it has served."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Protocol

from gspo_lightning.core.errors import UserError
from gspo_lightning.rollouts.gateway.bounds import BODY_BYTES, LOOP_BYTES, OPEN_REQUESTS, SESSION_BYTES, aside
from gspo_lightning.rollouts.gateway.exchange import ParsedTurn, RefusalError, Request, Served, busy, gone, invalid
from gspo_lightning.rollouts.gateway.reward import MOST_PARTS, AgentReward
from gspo_lightning.rollouts.gateway.trace import (
    Encoder,
    History,
    Match,
    Message,
    Node,
    Place,
    SampledTurn,
    Trace,
    TraceError,
    ids_of,
)

if TYPE_CHECKING:
    from gspo_lightning.core.turn import Turn


_TOKEN_BYTES = 16
"""Bytes of a token as text that are reckoned with."""
Phase = Literal["agent", "verify"]
"""Part of a rollout that begins: its conversation, or what the agent does after it."""


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
    ) -> SampledTurn:
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
    error: BaseException | None = None
    """Failure of the sampler, or a defect of the gateway."""
    closed: bool = False
    """True if no more turns are served."""
    reward_final: bool = False
    """True if the rollout is over: its reward is final, too."""
    on_phase: Callable[[Phase], None] | None = None
    """Called when the first turn is asked for, and when the agent ends the conversation."""
    counts: Counter[str] = field(default_factory=Counter)
    malformed_calls: int | None = None
    """Calls of tools that could not be read; None before the first turn with tools."""
    requested: list[Mapping[str, Any]] = field(default_factory=list)
    """Sampling that each turn was asked for; the run's was imposed."""
    begun: float = field(default_factory=time.monotonic)
    trace: Trace = field(init=False)
    open_requests: int = 0
    """Requests that are being answered."""
    open_bytes: int = 0
    """Bytes of their bodies."""
    kept: int = 0
    """Characters of messages and tools in the trace and in recorded answers."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a thread works for this session."""
    _begun: bool = False
    _sampling: int = 0
    _requests: dict[str, tuple[str, asyncio.Task[Served]]] = field(default_factory=dict)
    _places: Counter[int] = field(default_factory=Counter)
    _turns: dict[str, Node] = field(default_factory=dict)
    _echoed: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.trace = Trace(self.codec, self.match)

    def set_reward(self, reward: AgentReward) -> None:
        """Store the reward of the rollout; what it leaves out stays as it is.

        Raises:
            ValueError: it has rewards for more turns than there are, or too many parts.
        """
        if len(reward.turns) > len(self.trace.turns):
            raise ValueError(f"turns has {len(reward.turns)} rewards, and this session {len(self.trace.turns)} turns")
        if len(self.parts | reward.parts) > MOST_PARTS:
            raise ValueError(f"parts may have {MOST_PARTS} numbers")
        for turn, value in zip(self.trace.turns, reward.turns, strict=False):
            turn.reward = value
        if reward.reward is not None:
            self.reward = reward.reward
        elif reward.turns:
            self.reward = self.reward or 0.0
        self.parts |= reward.parts

    @contextmanager
    def admitted(self) -> Iterator[None]:
        """Count a request as open.

        Raises:
            RefusalError: there are too many.
        """
        if self.open_requests >= OPEN_REQUESTS:
            raise busy(f"{OPEN_REQUESTS} requests at the same time")
        self.open_requests += 1
        try:
            yield
        finally:
            self.open_requests -= 1

    @contextmanager
    def holding(self, most: int = BODY_BYTES) -> Iterator[Callable[[int], None]]:
        """Yield a function that takes more bytes for a body, which are given back at the end.

        Raises:
            RefusalError: the bodies of all open requests have too many.
        """
        held = 0

        def take(count: int) -> None:
            nonlocal held
            if self.open_bytes + count > most:
                raise busy(f"open requests of {most} bytes together")
            self.open_bytes += count
            held += count

        try:
            yield take
        finally:
            self.open_bytes -= held

    def begin(self, request: Request, key: str, *, again: bool, digest: str = "") -> asyncio.Task[Served]:
        """Start to answer a request; a retry gets the recorded answer, or waits for the one in flight.

        Args:
            request: what was asked.
            key: idempotency key, or the digest.
            again: the client says that it may have asked before.
            digest: of the body.

        Raises:
            RefusalError: the key belongs to another body.
        """
        if not self._begun and self.on_phase is not None:
            self.on_phase("agent")
        self._begun = True
        if again and key in self._requests:
            earlier_digest, earlier = self._requests[key]
            if earlier_digest != digest:
                problem = "this Idempotency-Key was used for another request of this session"
                raise RefusalError(422, "invalid_request_error", problem, "idempotency_key_reused")
            self.counts["retries"] += 1
            return earlier
        task = asyncio.ensure_future(self._answer(request))
        self._requests[key] = (digest, task)
        task.add_done_callback(partial(self._forget_failed, key))
        return task

    def check_turns(self) -> None:
        """Refuse a request for a turn if there are enough, those that are being sampled included.

        Raises:
            RefusalError: there are.
        """
        if self.closed:
            raise gone()
        if len(self.trace.turns) + self._sampling >= self.max_turns:
            raise self._too_long(f"{self.max_turns} turns already")

    async def count(self, request: Request) -> int:
        """Return the tokens of a request."""
        _, place, ids = await self._placed(request)
        return len(ids) + (place[1].end if place else 0)

    def messages_before(self, answer: str) -> Sequence[Message]:
        """Return the history that ends with an answer, by the name it was served under.

        Raises:
            RefusalError: there is no such answer.
        """
        if answer not in self._turns:
            raise invalid(f"there is no response {answer!r} in this session", "previous_response_not_found")
        return [message for node in self._turns[answer].path for message in node.messages]

    def finish(self) -> None:
        """Serve no more turns; the agent may still verify what it did, and give a reward."""
        if not self.closed and self.on_phase is not None:
            self.on_phase("verify")
        self.close()

    def close(self) -> None:
        """Refuse all requests from now on; those in flight are not added to the trace."""
        self.closed = True
        for _, task in list(self._requests.values()):
            task.cancel()

    def forget(self) -> None:
        """Drop recorded answers: nobody gets them any more."""
        self._requests = {}
        self._turns = {}
        self._echoed = {}

    async def _answer(self, request: Request) -> Served:
        self.check_turns()
        self._sampling += 1
        try:
            return await self._sampled(request, time.monotonic() - self.begun)
        finally:
            self._sampling -= 1

    async def _sampled(self, request: Request, asked_s: float) -> Served:
        for name in request.ignored:
            self.counts[f"ignored/{name}"] += 1
        history, place, ids = await self._placed(request)
        if self.closed:
            raise gone()
        length = len(ids) + (place[1].end if place else 0)
        room = self.longest - length
        if room < 1:
            raise self._too_long(f"{length} tokens, of at most {self.longest}")
        node = self.trace.attach(history, place, ids)
        self.kept += history.new(place)
        context = ids_of(node.path)
        budget = room if request.max_tokens is None else max(1, min(room, request.max_tokens))
        digest = await aside(8 * len(context), self.lock, _digest, context)
        try:
            sampled = await self.sampler.sample(self, context, budget, request.stop, self._place(digest))
        except Exception as error:
            self.error = self.error or error
            raise RefusalError(500, "server_error", f"no turn was sampled: {type(error).__name__}") from error
        size = len(sampled.token_ids) * _TOKEN_BYTES
        parsed = await aside(size, self.lock, self._parsed, request, sampled, context)
        if self.closed:
            raise gone()
        served = self._commit(request, history, node, context, sampled, parsed)
        served.turn.asked_s = asked_s
        served.turn.answered_s = time.monotonic() - self.begun
        return served

    def _parsed(self, request: Request, sampled: SampledTurn, context: tuple[int, ...]) -> ParsedTurn:
        tools = request.tools if request.parse_tool_calls else ()
        return ParsedTurn.of(self.codec.parse(sampled.token_ids, request.stop, tools, context), self.match)

    def _commit(
        self, request: Request, history: History, node: Node, context: tuple[int, ...], sampled: SampledTurn,
        parsed: ParsedTurn,
    ) -> Served:  # fmt: skip
        """Add a turn to the trace; return it as clients get it."""
        order = len(self.trace.turns)
        if request.parse_tool_calls and request.tools:
            self.malformed_calls = (self.malformed_calls or 0) + parsed.turn.malformed
        calls = parsed.message.get("tool_calls", [])
        for i, call in enumerate(calls):
            call["id"] = call["id"] or f"call_{order}_{i}"
        try:
            turn = self.trace.add_turn(node, context, sampled, parsed.message, parsed.key)
        except TraceError as error:
            self.error = error
            raise
        turn.heard = 0
        self.requested.append(request.requested)
        finish = "tool_calls" if calls else "stop"
        name = f"{self.name}_{order}"
        self._turns[name] = turn
        return Served(
            echoed={field: self._shared(value, history) for field, value in request.echoed.items()},
            request_bytes=request.size,
            turn=turn,
            sampled=sampled,
            content=parsed.turn.content,
            reasoning=parsed.turn.reasoning,
            calls=tuple(calls),
            finish="length" if sampled.truncated else finish,
            model=self.model,
            name=name,
        )

    async def _placed(self, request: Request) -> tuple[History, Place | None, tuple[int, ...]]:
        """Return a request, the node that it continues, and the tokens behind it.

        Raises:
            RefusalError: the messages are too long to be rendered while others wait, or cannot be expressed.
        """
        try:
            history = await aside(request.size, self.lock, History.of, request.messages, request.tools, self.match)
            place = self.trace.nearest(history)
            self._check_length(request, history, place)
            new = sum(history.weights[place[0] if place else 0 :]) + history.tools_weight
            return history, place, await aside(new, self.lock, self.trace.rendered, history, place)
        except UserError as error:
            self.counts["unrendered"] += 1
            raise invalid(str(error), "cannot_render") from error
        except RecursionError as error:
            raise invalid("an object in it is nested too deeply") from error

    def _check_length(self, request: Request, history: History, place: Place | None) -> None:
        """Refuse what no number of tokens that fit can have, before it is rendered.

        A text has at most the characters of its tokens. Templates write tools and calls in shapes of their own, so that
        these count where they are large.
        """
        most = self.longest * self.codec.longest_token
        texts = sum(len(str(message.get("content") or "")) for message in request.messages)
        thoughts = sum(len(str(message.get("reasoning_content") or "")) for message in request.messages)
        size = sum(history.weights) + history.tools_weight - thoughts
        for length, limit in ((texts, most), (size, max(most, LOOP_BYTES))):
            if length > limit:
                raise self._too_long(f"{length} characters, more than {self.longest} tokens can have")
        if self.kept + history.new(place) > SESSION_BYTES:
            raise self._too_long(f"more than {SESSION_BYTES} characters with all that was said before")

    def _shared(self, value: Any, history: History) -> Any:
        """Return a text or tools that answers repeat; equal ones are kept once."""
        if not isinstance(value, str | list):
            return value
        key = value if isinstance(value, str) else history.tools_key
        if key not in self._echoed:
            self._echoed[key] = value
            self.kept += len(value) if isinstance(value, str) else history.tools_weight
        return self._echoed[key]

    def _forget_failed(self, key: str, task: asyncio.Task[Served]) -> None:
        """Look at a task's exception, which nobody does for a client that is gone, and let it be asked again."""
        failed = task.cancelled() or task.exception() is not None
        if failed and self._requests.get(key, ("", None))[1] is task:
            del self._requests[key]

    def _too_long(self, size: str) -> RefusalError:
        """Return the refusal of a request that does not fit, and remember that there was one."""
        self.full = True
        return invalid(f"maximum context length: this conversation has {size}", "context_length_exceeded")

    def _place(self, digest: int) -> int:
        """Return a position of random numbers that depends on the context, and on how often it was asked about."""
        self._places[digest] += 1
        return (digest + self._places[digest] * 0x9E3779B97F4A7C15) % (1 << 52)


def _digest(context: tuple[int, ...]) -> int:
    return int.from_bytes(hashlib.blake2b(repr(context).encode(), digest_size=8).digest(), "big")
