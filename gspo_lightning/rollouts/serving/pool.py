"""Server pool: balance load over healthy servers, retry failures elsewhere, bring failed servers back."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gspo_lightning.core.errors import InfrastructureError, UserError
from gspo_lightning.rollouts.serving.answers import BadReplyError
from gspo_lightning.rollouts.serving.client import Client, ServerError, UnsupportedError
from gspo_lightning.rollouts.serving.process import LocalServer
from gspo_lightning.rollouts.serving.weight_version import is_newer


class Utilization:
    """Wall time with requests in flight. Safe to call from several threads.

    Args:
        clock: returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._requests = 0
        self._busy_s = 0.0
        self._counted = 0.0
        """Time up to which ``_busy_s`` is counted."""
        self._start: float | None = None
        """Start of the measured time; None before the first request."""

    def begin(self) -> None:
        """Count a request as sent."""
        with self._lock:
            self._count()
            self._requests += 1

    def end(self) -> None:
        """Count a request as answered or given up."""
        with self._lock:
            self._count()
            self._requests -= 1

    def idle_share(self) -> float:
        """Return the share of time without any request, since the last call; at first, since the first request."""
        with self._lock:
            if self._start is None:
                return 1.0
            self._count()
            passed = self._counted - self._start
            idle = 1.0 - self._busy_s / passed if passed > 0 else 0.0
            self._start = self._counted
            self._busy_s = 0.0
            return min(max(idle, 0.0), 1.0)

    def _count(self) -> None:
        now = self._clock()
        if self._start is None:
            self._start = now
        elif self._requests:
            self._busy_s += now - self._counted
        self._counted = now


log = logging.getLogger(__name__)

UNFINISHED = "unfinished"
"""Tag of weights during an update; after a failure half way, it matches no weights."""
Refusal = (ServerError, UnsupportedError, BadReplyError)


@dataclass(frozen=True)
class Faults:
    """Limits on failures and waiting."""

    retries: int
    """Attempts after the first for each group."""
    backoff_s: float
    """Seconds before the first retry; twice as long before each further one."""
    health_every_s: float
    """Seconds between two health checks of a server with requests."""
    start_timeout_s: float
    """Seconds until a started server must answer."""
    silence_s: float = math.inf
    """Seconds that a server with requests may be silent: it completes none, and counts no token."""


@dataclass(frozen=True)
class Weights:
    """Weights that every server must have before it gets requests."""

    folder: Path
    """Folder of a model in transformers format, for starting a local server."""
    tag: str
    base: str = ""
    """Tag of the weights that ``adapter`` belongs to; '' if whole weights are sent."""
    adapter: Path | None = None
    """Adapters in PEFT format; None: whole weights are sent."""
    in_files: bool = True
    """True if ``folder`` holds the weights themselves: any rank can then have a server read them."""
    pictures: bool = False
    """True if the model reads pictures."""

    @property
    def model(self) -> str:
        """Model name in requests for these adapters; '' stands for the model that the server serves."""
        return "" if self.adapter is None else self.tag


Deliver = Callable[["Server", Weights], Awaitable[None]]
"""Gives a healthy server the weights it lacks."""


async def deliver_files(server: Server, weights: Weights) -> None:
    """Have a server read its weights from a folder that it sees under the same path."""
    await server.client.name_weights(UNFINISHED)
    await server.client.load(str(weights.folder), weights.tag, pictures=weights.pictures)


@dataclass(eq=False)
class Server:
    """Server and its state."""

    client: Client
    start: Callable[[Path], LocalServer] | None = None
    """Start function of a local server; takes the folder of the model."""
    process: LocalServer | None = None
    base: str = ""
    """Name of the model that the server serves."""
    model: str = ""
    """Model name in requests: that model, or the adapters."""
    ready: bool = False
    """True if the last request succeeded and the server has the weights."""
    calls: set[asyncio.Future[Any]] = field(default_factory=set)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    heard: float = 0.0
    """Time of the last sign of work, by the monotonic clock."""
    progress: float | None = None
    """Token count of the server at that time."""
    ailment: str = ""
    utilization: Utilization = field(default_factory=Utilization)

    def lost(self, why: str) -> None:
        """Mark the server as not ready until its next health check, and cancel its calls."""
        self.ready = False
        self.ailment = why
        for call in self.calls:
            call.cancel()


class Pool:
    """Pool of servers. All methods run in one event loop.

    Args:
        servers: one or more.
        faults: limits on failures and waiting.
        deliver: gives a server its weights; None: another rank does so after every change.
        in_flight: weights may be replaced by newer ones of the same run while requests are in flight, and answers
            report the weights that sampled them.
    """

    def __init__(
        self,
        servers: Sequence[Server],
        faults: Faults,
        deliver: Deliver | None = deliver_files,
        *,
        in_flight: bool = False,
    ) -> None:
        self.servers = list(servers)
        self.faults = faults
        self.deliver = deliver
        self.in_flight = in_flight
        self.weights: Weights | None = None

    async def sync(self, weights: Weights) -> list[Server]:
        """Put new weights on every server; a server that fails is brought back when it is needed.

        Raises:
            InfrastructureError: no server took them.
            UnsupportedError: a server cannot take weights at all.
        """
        self.weights = weights
        for server in self.servers:
            server.ready = False
        results = await asyncio.gather(*(self._bring_up(s) for s in self.servers), return_exceptions=True)
        for server, result in zip(self.servers, results, strict=True):
            if isinstance(result, UnsupportedError):
                raise type(result)(f"{server.client.url}: {result}")
            if isinstance(result, BaseException) and not isinstance(result, Refusal):
                raise result
        if not any(s.ready for s in self.servers):
            raise InfrastructureError(f"no server took the weights: {'; '.join(str(r) for r in results)}")
        return [s for s in self.servers if s.ready]

    async def ask(self, call: Callable[[Server], Any]) -> Any:
        """Return the result of ``call`` on some server.

        Raises:
            InfrastructureError: every attempt failed.
        """
        tried: list[Server] = []
        for attempt in range(self.faults.retries + 1):
            if attempt:
                await asyncio.sleep(self.faults.backoff_s * 2 ** (attempt - 1))
            server, why = await self._pick(tried)
            if server is not None:
                tried.append(server)
                try:
                    return await self._on(server, call)
                except Refusal as error:
                    server.ready = False
                    why = f"{server.client.url}: {error}"
                    log.warning("%s", why)
        raise InfrastructureError(f"{len(self.servers)} server(s) failed {self.faults.retries + 1} times, last: {why}")

    async def watch(self) -> None:
        """Check the health of working servers until cancelled; calls to hanging servers are cancelled."""
        while True:
            await asyncio.sleep(self.faults.health_every_s)
            await asyncio.gather(*(self._look_after(s) for s in self.servers if s.calls))

    async def _look_after(self, server: Server) -> None:
        healthy, progress = await asyncio.gather(server.client.healthy(), server.client.progress())
        now = time.monotonic()
        limit = self.faults.silence_s
        if not healthy:
            server.lost("it does not answer health checks")
        elif progress is not None and progress != server.progress:
            server.heard = now
            server.progress = progress
        elif server.calls and now - server.heard > limit:
            server.lost(f"it has completed no request, and counted no token, for {limit:g} s")

    async def check_weights(self) -> None:
        """Check that every server that was used still has the weights, unless answers report their weights themselves.

        Raises:
            InfrastructureError: one has others: it was restarted, or somebody else uses it, too.
        """
        if self.in_flight:
            return
        for server in self.servers:
            if not server.ready:
                continue
            async with server.lock:  # the server may be getting new weights
                try:
                    same = await self._has(server)
                except Refusal:  # the server is gone; its earlier answers are complete
                    server.ready = False
                    continue
            if not same:
                server.ready = False
                raise InfrastructureError(f"{server.client.url} lost its weights in the middle of a rollout")

    async def reach(self) -> None:
        """Check that a server answers.

        Raises:
            UserError: no server answers.
        """
        reasons = await asyncio.gather(*(server.client.ailment() for server in self.servers))
        if all(reasons):
            ailments = "; ".join(f"{s.client.url}: {why}" for s, why in zip(self.servers, reasons, strict=True))
            raise UserError(
                "data.rollouts.urls",
                f"nothing answers a health check at {ailments}",
                fix="start the servers first, or leave urls out: one is started here",
            )

    def idle_share(self) -> float:
        """Return the share of time without requests since the last call, averaged over servers."""
        shares = [server.utilization.idle_share() for server in self.servers]
        return sum(shares) / len(shares)

    async def close(self) -> None:
        """Close connections and end the servers that were started here."""
        for server in self.servers:
            async with server.lock:  # a weight update in progress resumes the server first
                await server.client.close()
        await asyncio.gather(*(asyncio.to_thread(s.process.discard) for s in self.servers if s.process is not None))

    async def _pick(self, tried: Sequence[Server]) -> tuple[Server | None, str]:
        """Return the least busy server, preferring those that this group has not tried."""
        why = ""
        for server in sorted(self.servers, key=lambda s: (tried.count(s), not s.ready, len(s.calls))):
            try:
                await self._bring_up(server)
            except Refusal as error:
                why = f"{server.client.url}: {error}"
                log.warning("%s", why)
            else:
                return server, ""
        return None, why

    async def _on(self, server: Server, call: Callable[[Server], Any]) -> Any:
        future = asyncio.ensure_future(call(server))
        if not server.calls:
            server.heard = time.monotonic()
        server.calls.add(future)
        server.utilization.begin()
        try:
            result = await future
            server.heard = time.monotonic()
            return result
        except asyncio.CancelledError:
            task = asyncio.current_task()
            given_up = task is not None and task.cancelling()  # cancelled by the caller, during a weight update
            if future.cancelled() and not server.ready and not given_up:
                raise ServerError(server.ailment) from None
            future.cancel()
            raise
        finally:
            server.calls.discard(future)
            server.utilization.end()

    async def _bring_up(self, server: Server) -> None:
        """Ensure that the server runs, answers, and has the weights."""
        async with server.lock:
            weights = self.weights
            assert weights is not None
            if server.ready:
                return
            if server.start is not None:
                await self._run(server, weights)
            elif not await server.client.healthy():
                raise ServerError("it does not answer a health check")
            if not server.base:
                server.base = await server.client.model()
            server.model = weights.model or server.base
            if server.client.halted:
                await server.client.resume()
            if not await self._has(server):
                await self._give(server, weights)
            server.ready = True

    async def _give(self, server: Server, weights: Weights) -> None:
        """Deliver the weights that the server lacks."""
        if self.deliver is not None:
            async with server.client.paused():
                await self.deliver(server, weights)
            if not await self._has(server):
                raise ServerError("it does not have the weights that it was given")
            return
        deadline = time.monotonic() + self.faults.silence_s
        while await server.client.weights() == UNFINISHED and time.monotonic() < deadline:
            await asyncio.sleep(0.25)
        if not await self._has(server):
            raise ServerError("it does not have the weights, and only the first rank gives them while others sample")

    async def _has(self, server: Server) -> bool:
        """Return True if the server has the wanted weights, or newer ones with weights in flight."""
        server_tag = await server.client.weights()
        tag = "" if self.weights is None else self.weights.tag
        return server_tag == tag or (self.in_flight and is_newer(server_tag, tag))

    async def _run(self, server: Server, weights: Weights) -> None:
        """Start a local server, or restart it if it does not answer."""
        assert server.start is not None
        if server.process is not None:
            if server.process.running and await server.client.healthy():
                return
            log.warning(
                "%s does not answer any more; it is started anew. Its log: %s", server.client.url, server.process.log
            )
            await asyncio.to_thread(server.process.close)
        server.process = process = await asyncio.to_thread(server.start, weights.folder)
        deadline = time.monotonic() + self.faults.start_timeout_s
        while not await server.client.healthy():
            if not process.running:
                raise ServerError(f"the server ended while it started; {process.log} ends with:\n{process.tail()}")
            if time.monotonic() > deadline:
                await asyncio.to_thread(process.close)
                raise ServerError(f"the server did not start in {self.faults.start_timeout_s:g} s; see {process.log}")
            await asyncio.sleep(0.25)
