"""Warn after a minute about a server that leaves requests unanswered, long before their deadline."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterator

from gspo_lightning.rollouts.serving.client import Client, ServerError, UnsupportedError

log = logging.getLogger(__name__)


class RequestMonitor:
    """Watchdog of requests to a server."""

    QUIET_S = 60.0
    """Seconds without an answer to any request before each warning."""
    DEAF = 5
    """Consecutive failures of the server to name its model before it is given up."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._waiting = 0
        self._last = time.monotonic()

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        """Count a request as in flight inside the block."""
        if not self._waiting:
            self._last = time.monotonic()
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1
            self._last = time.monotonic()

    async def watch(self) -> None:
        """Warn about a server that does not answer; runs until cancelled.

        Raises:
            ServerError: the server answers nothing at all any more.
        """
        deaf = 0
        while True:
            await asyncio.sleep(self.QUIET_S)
            silent = time.monotonic() - self._last
            if not self._waiting or silent < self.QUIET_S:
                deaf = 0
                continue
            try:
                await self.client.model()
                deaf = 0
                state = "it names its model, so it may be busy"
            except (ServerError, UnsupportedError) as error:
                deaf += 1
                state = f"it does not name its model either: {error}"
            log.warning(
                "%s has answered none of %d requests for %.0f s; %s", self.client.url, self._waiting, silent, state
            )
            if deaf == self.DEAF:
                raise ServerError(f"nothing for {time.monotonic() - self._last:.0f} s")
