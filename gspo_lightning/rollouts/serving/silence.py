"""A server that leaves requests unanswered: said after a minute, long before their deadline."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterator

from gspo_lightning.rollouts.serving.client import Client, ServerError, UnsupportedError

__all__ = ["Silence"]

log = logging.getLogger(__name__)


class Silence:
    """Watches requests to a server.

    Args:
        client: of the server.
    """

    QUIET_S = 60.0
    """Without an answer to any request, before that is said, again and again."""
    DEAF = 5
    """Times in a row that the server does not even name its model, before it is given up."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._waiting, self._last = 0, time.monotonic()

    @contextlib.contextmanager
    def asked(self) -> Iterator[None]:
        """A request is on its way."""
        if not self._waiting:
            self._last = time.monotonic()
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1
            self._last = time.monotonic()

    async def watch(self) -> None:
        """Say it of a server that does not answer; for ever, unless cancelled.

        Raises:
            ServerError: it answers nothing at all any more.
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
                deaf, state = 0, "it names its model, so it may be busy"
            except (ServerError, UnsupportedError) as error:
                deaf, state = deaf + 1, f"it does not name its model either: {error}"
            log.warning(
                "%s has answered none of %d requests for %.0f s; %s", self.client.url, self._waiting, silent, state
            )
            if deaf == self.DEAF:
                raise ServerError(f"nothing for {time.monotonic() - self._last:.0f} s")
