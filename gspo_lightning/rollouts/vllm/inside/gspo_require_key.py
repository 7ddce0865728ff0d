"""Require the key on every route of a server. vLLM itself protects ``/v1`` only, not weight updates.

vLLM loads it by ``--middleware gspo_require_key.RequireKey`` with this folder on ``PYTHONPATH``.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

KEY = "VLLM_API_KEY"
"""Environment variable that holds the key: neither a command line nor a log shows it."""

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


class RequireKey:
    """ASGI middleware: a request without ``Authorization: Bearer KEY`` gets status 401, whatever its route.

    Args:
        app: the application behind it.

    Raises:
        RuntimeError: the environment holds no key, which would let anybody in.
    """

    def __init__(self, app: App) -> None:
        key = os.environ.get(KEY)
        if not key:
            raise RuntimeError(f"{KEY} is not set: authorised requests could not be recognised")
        self.app = app
        self._wanted = _digest(b"Bearer " + key.encode())

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Forward the request or refuse it; a ``lifespan`` scope is no request and comes from the server itself."""
        if scope["type"] == "lifespan" or self._known(scope):
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            headers = [(b"content-type", b"application/json"), (b"www-authenticate", b"Bearer")]
            await send({"type": "http.response.start", "status": 401, "headers": headers})
            await send({"type": "http.response.body", "body": b'{"error": "Unauthorized"}'})
        else:
            await send({"type": "websocket.close", "code": 1008})

    def _known(self, scope: Message) -> bool:
        sent = [value for name, value in scope.get("headers", ()) if name.lower() == b"authorization"]
        return len(sent) == 1 and hmac.compare_digest(_digest(sent[0]), self._wanted)


def _digest(value: bytes) -> bytes:
    """Hash to a fixed length: comparing takes equally long for a guess with a correct prefix."""
    return hashlib.sha256(value).digest()
