"""A server on loopback that answers in threads of this process."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

__all__ = ["LoopbackServer"]


class LoopbackServer(ABC):
    """Listens on a free port from ``with`` on, until its end."""

    def __enter__(self) -> Self:
        self._server = self._listening()
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        """Address of the server."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def _listening(self) -> ThreadingHTTPServer:
        return ThreadingHTTPServer(("127.0.0.1", 0), self._handler())

    @abstractmethod
    def _handler(self) -> type[BaseHTTPRequestHandler]:
        """Return the class that answers requests."""
