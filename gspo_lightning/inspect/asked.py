"""What Inspect asks a model, what it is told, and how a coroutine waits for a thread."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Literal, Protocol

import anyio

__all__ = ["Asked", "Backend", "Choice", "Numbers", "Stop", "Told", "until"]

Role = Literal["system", "user", "assistant"]
Stop = Literal["stop", "max_tokens", "model_length"]
_LOOK_S = 0.01


@dataclass(frozen=True, slots=True)
class Asked:
    """One request: a conversation, and how the answers to it are sampled."""

    messages: tuple[tuple[Role, str], ...]
    temperature: float | None
    """None takes what the backend does by default."""
    top_p: float | None
    top_k: int | None
    max_tokens: int
    stop: tuple[str, ...]
    seed: int
    choices: int
    """Answers that are wanted."""
    logprobs: bool


@dataclass(frozen=True, slots=True)
class Choice:
    """One answer."""

    text: str
    tokens: int
    stop: Stop
    logprobs: tuple[tuple[str, float], ...] | None = None
    """(token, nats) of each token, where that was asked for."""


@dataclass(frozen=True, slots=True)
class Told:
    """The answers to a request."""

    choices: tuple[Choice, ...]
    prompt_tokens: int | None
    """None: nobody counted, those of the choices included."""


class Backend(Protocol):
    """What answers: a policy in this process, or a server."""

    name: str
    """Of the model, for logs."""

    def ask(self, asked: Asked) -> Future[Told]:
        """Begin to answer; cancelling the future may save the work.

        The future raises:
            UserError: the request cannot be answered.
            ServerError: the server does not answer now.
        """

    def close(self) -> None:
        """Release what was opened."""


class Numbers:
    """A number for each request, so that its random draws depend neither on batching nor on timing.

    It is made of the conversation and of how often the same one was asked before: the epochs of a sample get different
    answers, and a second run of the evaluation the same set of answers.

    >>> numbers = Numbers()
    >>> first = numbers.next((("user", "hi"),))
    >>> first == numbers.next((("user", "hi"),)), first == Numbers().next((("user", "hi"),))
    (False, True)
    """

    def __init__(self) -> None:
        self._asked: Counter[str] = Counter()

    def next(self, messages: Sequence[tuple[str, str]]) -> int:
        """In [0, 2^62)."""
        key = hashlib.sha256(json.dumps(messages).encode()).hexdigest()
        digest = hashlib.sha256(f"{key}/{self._asked[key]}".encode()).digest()
        self._asked[key] += 1
        return int.from_bytes(digest[:8], "big") >> 2


async def until(done: Callable[[], bool]) -> None:
    """Wait for another thread, on whichever event loop Inspect runs (asyncio or trio)."""
    while not done():
        await anyio.sleep(_LOOK_S)
