"""Concurrent conversations on an event loop in a thread of its own; the trainer only waits for results."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from gspo_lightning.core.errors import InfrastructureError

log = logging.getLogger(__name__)

Call = Callable[[], Coroutine[Any, Any, None]]
Done = Callable[[Exception | None], None]
BEAT_S = 0.2
"""Seconds between two looks at whether the loop still moves."""
_GRACE_S = 2.0


class Answers:
    """Handle of calls in progress."""

    def __init__(self, host: Host, future: concurrent.futures.Future[None], errors: list[Exception | None]) -> None:
        self._host = host
        self._future = future
        self._errors = errors

    def wait(self) -> list[Exception | None]:
        """Return None or the exception of each call; :class:`BlockedError` if the loop hung before it ended."""
        while not self._future.done():
            concurrent.futures.wait([self._future], timeout=BEAT_S)
            if not self._future.done() and self._host.blocked:
                self._host.abandon()
                break
        return list(self._errors)


class BlockedError(InfrastructureError):
    """Event loop blocked by an asynchronous environment that computed or slept without awaiting."""


class Host:
    """Runner of concurrent calls on one event loop.

    Args:
        deadline_s: seconds for which a call may block the loop.
        max_concurrent: calls at the same time.
    """

    def __init__(self, deadline_s: float, max_concurrent: int) -> None:
        self.deadline_s = deadline_s
        self.max_concurrent = max_concurrent
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._gate = asyncio.Semaphore(max_concurrent)
        self._beat = 0.0

    @property
    def blocked(self) -> bool:
        """True if the loop has not moved for longer than a call may block it."""
        return time.monotonic() - self._beat > self.deadline_s + _GRACE_S

    def submit(self, call: Call, done: Done) -> concurrent.futures.Future[None]:
        """Start one call and return at once; ``done`` gets None or its exception, in the loop's thread."""
        return asyncio.run_coroutine_threadsafe(_one(call, done, self._gate), self._running())

    def start(self, calls: Sequence[Call]) -> Answers:
        """Start all calls and return at once."""
        late = BlockedError("an environment blocked the event loop: an async method must await, or be a plain one")
        errors: list[Exception | None] = [late] * len(calls)
        work = _gather(calls, errors, self.max_concurrent)
        return Answers(self, asyncio.run_coroutine_threadsafe(work, self._running()), errors)

    def abandon(self) -> None:
        """Leave a blocked loop behind, which stops if it ever unblocks; the next call gets a new loop."""
        log.warning("an environment has blocked the event loop for %g s: continuing in a new one", self.deadline_s)
        self._stop(wait_s=0.0)

    def close(self) -> None:
        """Stop the loop and wait for its thread; a blocked thread is left behind."""
        self._stop(wait_s=2 * _GRACE_S)

    def _running(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._gate = asyncio.Semaphore(self.max_concurrent)
            self._thread = threading.Thread(target=_run, args=(self._loop,), name="environments", daemon=True)
            self._thread.start()
            self._beat = time.monotonic()
            self._loop.call_soon_threadsafe(self._keep_beating, self._loop)
        return self._loop

    def _stop(self, wait_s: float) -> None:
        loop = self._loop
        thread = self._thread
        if loop is None or thread is None:
            return
        self._loop = None
        self._thread = None
        loop.call_soon_threadsafe(loop.stop)
        thread.join(wait_s)
        if thread.is_alive():
            thread.name = "environments-blocked"

    def _keep_beating(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._loop is loop:
            self._beat = time.monotonic()
            loop.call_later(BEAT_S, self._keep_beating, loop)


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    loop.run_forever()
    if tasks := asyncio.all_tasks(loop):
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.wait(tasks, timeout=_GRACE_S))
    loop.close()


async def _gather(calls: Sequence[Call], errors: list[Exception | None], concurrent_calls: int) -> None:
    gate = asyncio.Semaphore(concurrent_calls)
    await asyncio.gather(*(_one(call, partial(errors.__setitem__, i), gate) for i, call in enumerate(calls)))


async def _one(call: Call, done: Done, gate: asyncio.Semaphore) -> None:
    async with gate:
        try:
            await call()
        except Exception as error:
            done(error)
        else:
            done(None)
