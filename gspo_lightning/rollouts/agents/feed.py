"""Feed of requests from the gateway's thread to the thread that samples, and of its turns back."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gspo_lightning.rollouts.gateway.session import Session
from gspo_lightning.rollouts.gateway.trace import Piece

_LONGEST = 10
"""How many times the linger may begin anew because another request came."""


@dataclass(slots=True, eq=False)
class Asked:
    """A turn that a session waits for; ``said`` is what was sampled before the batch was cut for others."""

    session: Session
    context: tuple[int, ...]
    budget: int
    stop: tuple[str, ...]
    place: int
    future: asyncio.Future[Piece]
    since: float = field(default_factory=time.monotonic)
    said: list[Piece] = field(default_factory=list)

    @property
    def written(self) -> tuple[int, ...]:
        """Tokens sampled so far."""
        return tuple(i for piece in self.said for i in piece.token_ids)

    def whole(self) -> Piece:
        """Return the turn, from all that was sampled."""
        if len(self.said) == 1:
            return self.said[0]
        last, known = self.said[-1], all(piece.logprobs is not None for piece in self.said)
        versions = [v for p in self.said for v in p.versions or (p.version,) * len(p.token_ids)]
        return replace(
            last,
            token_ids=self.written,
            logprobs=tuple(x for piece in self.said for x in piece.logprobs or ()) if known else None,
            versions=tuple(versions) if {*versions} != {last.version} else (),
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
        self._asked: list[Asked] = []
        self._finished: list[int] = []
        self._over = False
        self._changed = threading.Condition()

    async def sample(
        self, session: Session, context: tuple[int, ...], budget: int, stop: tuple[str, ...], place: int
    ) -> Piece:
        """Wait for a turn; called in the gateway's thread."""
        one = Asked(session, context, budget, stop, place, asyncio.get_running_loop().create_future())
        with self._changed:
            self._asked.append(one)
            self._changed.notify()
        return await one.future

    def again(self, unfinished: Sequence[Asked]) -> None:
        """Take back turns that were cut: they go on with the next batch."""
        with self._changed:
            self._asked[:0] = unfinished

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

    def take(self) -> tuple[list[Asked], list[int], bool]:
        """Wait for something to do; return turns to sample, groups that are complete, and whether all is over."""
        with self._changed:
            while not (self._asked or self._finished or self._over):
                self._changed.wait()
            for _ in range(_LONGEST):
                known = len(self._asked)
                sessions = {one.session.name for one in self._asked}
                if not known or self._over or len(sessions) >= self.under_way or not self._changed.wait(self.linger_s):
                    break
            asked, self._asked = [one for one in self._asked if not one.future.cancelled()], []
            finished, self._finished = self._finished, []
            now = time.monotonic()
            self.waited_s += sum(now - one.since for one in asked)
            return asked, finished, self._over and not asked

    @staticmethod
    def answer(asked: Sequence[Asked]) -> None:
        """Return turns to the sessions that wait for them."""
        if asked:
            asked[0].future.get_loop().call_soon_threadsafe(_settle, asked)


def _settle(asked: Sequence[Asked]) -> None:
    for one in asked:
        if not one.future.done():
            one.future.set_result(one.whole())
