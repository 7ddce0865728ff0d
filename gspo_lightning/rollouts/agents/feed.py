"""Feed of requests from the gateway's thread to the thread that samples, and of its turns back."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gspo_lightning.rollouts.gateway.session import Session
from gspo_lightning.rollouts.gateway.trace import SampledTurn

MAX_LINGERS = 10
"""How many times the linger may begin anew because another request came."""


@dataclass(slots=True, eq=False)
class PendingTurn:
    """A turn that a session waits for."""

    session: Session
    context: tuple[int, ...]
    """Token ids before the turn."""
    budget: int
    """Largest number of tokens, at least 1."""
    stop: tuple[str, ...]
    """Texts that end the turn."""
    first_draw: int
    """Position of the turn's first random number."""
    future: asyncio.Future[SampledTurn]
    """Set to the turn, in the gateway's thread."""
    since: float = field(default_factory=time.monotonic)
    """Moment of the request."""
    pieces: list[SampledTurn] = field(default_factory=list)
    """What was sampled before the batch was cut for others, and at last the rest."""

    @property
    def written(self) -> tuple[int, ...]:
        """Tokens sampled so far."""
        return tuple(i for piece in self.pieces for i in piece.token_ids)

    def whole(self) -> SampledTurn:
        """Return the turn, from all that was sampled."""
        if len(self.pieces) == 1:
            return self.pieces[0]
        last = self.pieces[-1]
        logprobs: list[float] | None = []
        versions: list[int] = []
        for piece in self.pieces:
            versions += piece.versions or (piece.version,) * len(piece.token_ids)
            logprobs = None if logprobs is None or piece.logprobs is None else [*logprobs, *piece.logprobs]
        return replace(
            last,
            token_ids=self.written,
            logprobs=None if logprobs is None else tuple(logprobs),
            versions=() if set(versions) == {last.version} else tuple(versions),
        )


class Feed:
    """Queue of turns that sessions wait for; the gateway's sampler.

    Args:
        linger_s: seconds without a new request before those that wait are sampled together. Nobody lingers if every
            rollout under way waits.
    """

    def __init__(self, linger_s: float) -> None:
        self.linger_s = linger_s
        self.under_way = 0
        """Rollouts whose agents are running."""
        self.waited_s = 0.0
        """Seconds that turns have waited before they were sampled, in sum."""
        self._pending: list[PendingTurn] = []
        self._finished: list[int] = []
        self._over = False
        self._changed = threading.Condition()

    async def sample(
        self, session: Session, context: tuple[int, ...], budget: int, stop: tuple[str, ...], place: int
    ) -> SampledTurn:
        """Wait for a turn; called in the gateway's thread."""
        future: asyncio.Future[SampledTurn] = asyncio.get_running_loop().create_future()
        with self._changed:
            self._pending.append(PendingTurn(session, context, budget, stop, place, future))
            self._changed.notify()
        return await future

    def put_back(self, unfinished: Sequence[PendingTurn]) -> None:
        """Take back turns that were cut: they go on with the next batch."""
        with self._changed:
            self._pending[:0] = unfinished

    def finish(self, number: int) -> None:
        """Report a complete group; called in the gateway's thread."""
        with self._changed:
            self._finished.append(number)
            self._changed.notify()

    def end(self, *_: Any) -> None:
        """Report that no more requests will come."""
        with self._changed:
            self._over = True
            self._changed.notify()

    def take(self) -> tuple[list[PendingTurn], list[int], bool]:
        """Wait for something to do; return turns to sample, groups that are complete, and whether all is over."""
        with self._changed:
            while not (self._pending or self._finished or self._over):
                self._changed.wait()
            for _ in range(MAX_LINGERS):
                if not self._may_grow() or not self._changed.wait(self.linger_s):
                    break
            pending = [turn for turn in self._pending if not turn.future.cancelled()]
            self._pending = []
            finished = self._finished
            self._finished = []
            now = time.monotonic()
            self.waited_s += sum(now - turn.since for turn in pending)
            return pending, finished, self._over and not pending

    def _may_grow(self) -> bool:
        """True if some turns wait, and some rollout under way may still ask for one."""
        waiting = {turn.session.name for turn in self._pending}
        return bool(waiting) and not self._over and len(waiting) < self.under_way

    @staticmethod
    def answer(turns: Sequence[PendingTurn]) -> None:
        """Return turns to the sessions that wait for them."""
        if turns:
            turns[0].future.get_loop().call_soon_threadsafe(_settle, turns)


def _settle(turns: Sequence[PendingTurn]) -> None:
    for turn in turns:
        if not turn.future.done():
            turn.future.set_result(turn.whole())
