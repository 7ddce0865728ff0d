"""Requests in flight, aborted on their servers once enough responses are complete."""

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
"""Seconds between repeated aborts: a request may not have arrived before the first one."""


class Flying:
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
            told = await asyncio.gather(*(c.abort(own) for c, own in names.items()), return_exceptions=True)
            if all(isinstance(answer, UnsupportedError) for answer in told):
                break
            await asyncio.sleep(AGAIN_S)
        for _, task in list(self._requests.values()):
            if task is not None:
                task.cancel()
