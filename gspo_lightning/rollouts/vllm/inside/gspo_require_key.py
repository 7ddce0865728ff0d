"""Every route of a server asks for the key. vLLM's own guards ``/v1`` alone, and not the routes that take weights.

vLLM finds it by ``--middleware gspo_require_key.RequireKey`` with this folder on ``PYTHONPATH``.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

__all__ = ["KEY", "RequireKey"]

KEY = "VLLM_API_KEY"
"""Environment variable that holds the key: neither a command line nor a log shows it."""

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


class RequireKey:
    """ASGI middleware: whoever does not send ``Authorization: Bearer KEY`` gets status 401, whatever they ask for.

    Args:
        app: what answers those who do.

    Raises:
        RuntimeError: the environment holds no key, so that anybody would be let in.
    """

    def __init__(self, app: App) -> None:
        key = os.environ.get(KEY)
        if not key:
            raise RuntimeError(f"{KEY} is not set: authorised requests could not be recognised")
        self.app = app
        self._wanted = _digest(b"Bearer " + key.encode())

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Hand the request on, or refuse it; what is no request (``lifespan``) comes from the server itself."""
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
    """Of one length whatever the value: comparing takes as long for a guess that begins right."""
    return hashlib.sha256(value).digest()
