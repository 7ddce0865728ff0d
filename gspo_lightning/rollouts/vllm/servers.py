"""Servers of a source: running ones at its URLs or ones started here, and the requests in flight on them."""

from __future__ import annotations

import asyncio
import functools
import secrets
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from gspo_lightning.core.addresses import is_loopback
from gspo_lightning.core.bodies import PER_ROUTED_TOKEN
from gspo_lightning.core.distributed import rank_and_world
from gspo_lightning.core.errors import InfrastructureError
from gspo_lightning.policy.packing.memory import empty_cache
from gspo_lightning.policy.policy import Policy
from gspo_lightning.rollouts.serving.client import Client, UnsupportedError
from gspo_lightning.rollouts.serving.endpoint import Endpoint, PrivateFolder, check_host, given, on_port, on_socket
from gspo_lightning.rollouts.serving.loop import LoopThread
from gspo_lightning.rollouts.serving.pool import Deliver, Faults, Pool, Server, Weights
from gspo_lightning.rollouts.serving.process import LocalServer
from gspo_lightning.rollouts.vllm.gpus import Card, Placement, merged, placed
from gspo_lightning.rollouts.vllm.local import Defaults, LocalVLLM, check_installed
from gspo_lightning.rollouts.vllm.pictures import shown_to
from gspo_lightning.rollouts.vllm.weight_sync import NoAdaptersError, WeightSync
from gspo_lightning.rollouts.vllm.weight_transport import TransportContext, TransportOrAuto, choose, is_near

AGAIN_S = 0.1
"""Seconds between repeated aborts: a request may not have arrived before the first one."""


class Servers:
    """Pool of servers, its event loop, and the start settings.

    Args:
        urls: URLs of running servers; None starts some.
        count: number of servers to start.
        local: how they are started.
        host: address that they listen on; None is a socket file.
        plain_http: True if a key may go to another host unencrypted.
        faults: limits on failures and waiting.
        health_timeout_s: seconds that a health check may take.
        in_flight: weights may be replaced while requests are in flight.

    Raises:
        UserError: a URL or the host cannot be used.
    """

    def __init__(
        self, urls: list[str] | None, count: int, local: LocalVLLM, host: str | None, *, plain_http: bool,
        faults: Faults, health_timeout_s: float, in_flight: bool,
    ) -> None:  # fmt: skip
        self.urls = urls
        self.count = count
        self.local = local
        self._given = [] if urls is None else given(urls, plain_http)
        if host is not None:
            check_host(host, plain_http)
        self._host = host
        self._plain_http = plain_http
        self._faults = faults
        self._health_timeout_s = health_timeout_s
        self._in_flight = in_flight
        self.private = PrivateFolder()
        self.loop = LoopThread("vllm")
        self.timeout_s = faults.silence_s
        """Seconds that a call with a deadline may take."""
        self.longest = 0
        """Tokens of the longest sequence that will be requested; 0: unknown."""
        self.cards: Sequence[Card | None] = ()
        """GPU of each rank; None on a CPU."""
        self._pool: Pool | None = None

    @property
    def met(self) -> bool:
        """True if the pool exists."""
        return self._pool is not None

    @property
    def pool(self) -> Pool:
        """Pool of all servers."""
        assert self._pool is not None
        return self._pool

    def look(self, deliver: Deliver) -> None:
        """Check that vLLM is installed, or that a server answers.

        Raises:
            UserError: it is not, or none does.
        """
        if self.urls is None:
            check_installed(self.local.python)
        elif not self.met:
            self.connect(self._given, deliver)
            self.loop.run(self.pool.reach())

    def connect(self, endpoints: Sequence[Endpoint] | None, deliver: Deliver | None) -> None:
        """Create the pool of servers at these endpoints; None takes those at the URLs."""
        endpoints = self._given if endpoints is None else endpoints
        servers = [Server(self._client(endpoint)) for endpoint in endpoints]
        self._pool = Pool(servers, self._faults, deliver, in_flight=self._in_flight)

    def add_own(self, policy: Policy, dtype: str, weight_sync: WeightSync) -> None:
        """Add the local servers, which start when they are first needed."""
        if self.urls is not None:
            return
        for_weights = weight_sync.options(policy, self.local.options)
        placement = self._placement
        for number in range(self.count):
            private = self.private.make()
            endpoint = on_socket(private, number) if self._host is None else on_port(self._host)
            defaults = merged(for_weights, placement.defaults(number))
            start = functools.partial(self._start, endpoint, number, policy.device.type, dtype, defaults, weight_sync)
            self.pool.servers.append(Server(self._client(endpoint), start))

    def transport_context(self, policy: Policy) -> TransportContext:
        """Return the inputs for choosing a weight transport."""
        cuda = policy.device.type == "cuda"
        _, ranks = rank_and_world()
        if self.urls is None:
            trusted = self._host is None or is_loopback(self._host) or self._plain_http
            placement = self._placement
            pictures = shown_to(policy) is not None
            return TransportContext(cuda, ranks, trusted, pictures, placement.own, placement.servers)
        backends = [self.loop.run(server.client.backend()) for server in self.pool.servers] if cuda else []
        return TransportContext(cuda, ranks, self._plain_http or all(map(is_near, self.urls)), configured=backends)

    def sync(
        self, weight_sync: WeightSync, policy: Policy, dtype: torch.dtype, version: int, transfer: TransportOrAuto
    ) -> tuple[Weights, list[Server]]:
        """Put new weights on every server; return them, and the servers that have them.

        The transport is chosen at the first call. If the one that ``auto`` chose fails on every server, weights go as
        files from then on; servers started here start again, since a transport is an option of their start.

        Raises:
            InfrastructureError: no server took them.
            UnsupportedError: a server cannot take weights at all.
        """
        if weight_sync.transport is None:
            weight_sync.transport = choose(transfer, self.transport_context(policy))
            self.add_own(policy, str(dtype)[6:], weight_sync)
        weights = weight_sync.prepare(policy, dtype, version)
        weight_sync.failure = ""
        try:
            return weights, self.loop.run(self.pool.sync(weights))
        except NoAdaptersError as error:
            weights = weight_sync.merged(policy, dtype, version, str(error))
        except (InfrastructureError, UnsupportedError):
            if transfer != "auto" or not weight_sync.failure:
                raise
            weight_sync.use_files()
            if self.urls is None:
                self.loop.run(self.pool.close())
                self.pool.servers.clear()
                self.add_own(policy, str(dtype)[6:], weight_sync)
            weights = weight_sync.prepare(policy, dtype, version)
        return weights, self.loop.run(self.pool.sync(weights))

    def close(self) -> None:
        """End the servers that were started here."""
        if self._pool is not None:
            self.loop.run(self._pool.close())
        self.loop.close()
        self._pool = None
        self.private.close()

    @property
    def on_gpus(self) -> bool:
        """True if the first rank is on a GPU."""
        return bool(self.cards) and self.cards[0] is not None

    @property
    def _placement(self) -> Placement:
        """GPUs of the servers that are started here."""
        return placed(self.cards, self.local, self.count)

    def _client(self, endpoint: Endpoint) -> Client:
        return Client(endpoint, self.timeout_s, self._health_timeout_s, PER_ROUTED_TOKEN)

    def _start(
        self, endpoint: Endpoint, number: int, device: str, dtype: str, also: Defaults, weight_sync: WeightSync,
        folder: Path,
    ) -> LocalServer:  # fmt: skip
        private = self.private.make()
        root = weight_sync.folders.root
        if device == "cuda":
            empty_cache()  # a server that starts needs its share free, which this process may only keep
        return self.local.start(
            folder, endpoint, private, number=number, device=device, dtype=dtype, longest=self.longest, also=also,
            remove=[private, *([root] if root is not None else [])],
        )  # fmt: skip


class InflightRequests:
    """Requests of one call, by the names that servers know them by."""

    def __init__(self) -> None:
        self.over = False
        """True once no further request may be sent."""
        self._requests: dict[str, tuple[Client, asyncio.Task[Any] | None]] = {}

    @contextmanager
    def named(self, client: Client) -> Iterator[str]:
        """Register the request sent inside under a new name."""
        name = secrets.token_hex(8)
        self._requests[name] = client, asyncio.current_task()
        try:
            yield name
        finally:
            del self._requests[name]

    async def end(self, patience_s: float) -> None:
        """Have servers answer with the tokens so far; cancel requests if that takes longer or is unsupported."""
        deadline = time.monotonic() + patience_s
        while self._requests and time.monotonic() < deadline:
            names: dict[Client, list[str]] = defaultdict(list)
            for name, (client, _) in self._requests.items():
                names[client].append(name)
            aborts = [client.abort(requests) for client, requests in names.items()]
            results = await asyncio.gather(*aborts, return_exceptions=True)
            if all(isinstance(result, UnsupportedError) for result in results):
                break
            await asyncio.sleep(AGAIN_S)
        for _, task in list(self._requests.values()):
            if task is not None:
                task.cancel()
