"""Requests that servers are working on, ended where they are once there is enough."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gspo_lightning.rollouts.serving.client import Client, UnsupportedError

__all__ = ["Flying"]

AGAIN_S = 0.1
"""Seconds until servers are told again: a request may have been on its way the first time."""


class Flying:
    """The requests of one call, by names that servers know them by."""

    def __init__(self) -> None:
        self.over = False
        """No further request is sent."""
        self._requests: dict[str, tuple[Client, asyncio.Task[Any] | None]] = {}

    @contextmanager
    def named(self, client: Client) -> Iterator[str]:
        """A name for the request that is sent inside."""
        name = secrets.token_hex(8)
        self._requests[name] = client, asyncio.current_task()
        try:
            yield name
        finally:
            del self._requests[name]

    async def end(self, patience_s: float) -> None:
        """Have servers answer with what there is; requests are dropped where that takes longer, or is not possible."""
        deadline = time.monotonic() + patience_s
        while self._requests and time.monotonic() < deadline:
            names: dict[Client, list[str]] = defaultdict(list)
            for name, (client, _) in self._requests.items():
                names[client].append(name)
            told = await asyncio.gather(*(c.abort(own) for c, own in names.items()), return_exceptions=True)
            if all(isinstance(answer, UnsupportedError) for answer in told):
                break
            await asyncio.sleep(AGAIN_S)
        for _, task in list(self._requests.values()):
            if task is not None:
                task.cancel()
