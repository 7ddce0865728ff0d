"""Requests and responses between Inspect and a backend, and waiting for a thread from a coroutine."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Literal, Protocol

import anyio

Role = Literal["system", "user", "assistant"]
Stop = Literal["stop", "max_tokens", "model_length"]
_LOOK_S = 0.01


@dataclass(frozen=True, slots=True)
class Request:
    """One request: a conversation with sampling parameters."""

    messages: tuple[tuple[Role, str], ...]
    temperature: float | None
    """Sampling temperature; None takes the backend's default."""
    top_p: float | None
    top_k: int | None
    max_tokens: int
    stop: tuple[str, ...]
    seed: int
    choices: int
    """Number of answers to sample."""
    logprobs: bool


@dataclass(frozen=True, slots=True)
class Choice:
    """One answer."""

    text: str
    tokens: int
    stop: Stop
    logprobs: tuple[tuple[str, float], ...] | None = None
    """(token, log-probability in nats) for each token, if requested."""


@dataclass(frozen=True, slots=True)
class Response:
    """Answers to a request."""

    choices: tuple[Choice, ...]
    prompt_tokens: int | None
    """Number of prompt tokens; None if unknown: tokens of the choices are then unknown, too."""


class Backend(Protocol):
    """Backend that answers requests: a policy in this process, or a server."""

    name: str
    """Name of the model, for logs."""

    def ask(self, request: Request) -> Future[Response]:
        """Start answering; cancelling the future may save the work.

        The future raises:
            UserError: the request cannot be answered.
            ServerError: the server does not respond now.
        """

    def close(self) -> None:
        """Release all resources."""


class Numbers:
    """Seeds of requests, which make random draws independent of batching and timing.

    A seed is a hash of the conversation and of how often it was asked before: the epochs of a sample get different
    answers, and a second run of the evaluation gets the same set of answers.

    >>> numbers = Numbers()
    >>> first = numbers.next((("user", "hi"),))
    >>> first == numbers.next((("user", "hi"),)), first == Numbers().next((("user", "hi"),))
    (False, True)
    """

    def __init__(self) -> None:
        self._asked: Counter[str] = Counter()

    def next(self, messages: Sequence[tuple[str, str]]) -> int:
        """Return the number of the next request with this conversation, in [0, 2^62)."""
        key = hashlib.sha256(json.dumps(messages).encode()).hexdigest()
        digest = hashlib.sha256(f"{key}/{self._asked[key]}".encode()).digest()
        self._asked[key] += 1
        return int.from_bytes(digest[:8], "big") >> 2


async def until(done: Callable[[], bool]) -> None:
    """Wait for another thread, on Inspect's event loop (asyncio or trio)."""
    while not done():
        await anyio.sleep(_LOOK_S)
