"""A server on loopback whose bodies do harm to who reads them without limits."""

from __future__ import annotations

import itertools
import json
import zlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler

from tests.support.loopback import LoopbackServer

__all__ = ["BOMB", "HARM", "HostileServer"]

BOMB = 1 << 30
"""Bytes that a bomb unpacks to."""
MODELS = json.dumps({"data": [{"id": "a-model"}]}).encode()


def _blocks(wbits: int) -> Iterable[bytes]:
    """A megabyte that unpacks to a gigabyte: one block, again and again."""
    first = zlib.compressobj(9, zlib.DEFLATED, wbits)
    head = first.compress(bytes(1 << 20)) + first.flush(zlib.Z_FULL_FLUSH)
    again = first.compress(bytes(1 << 20)) + first.flush(zlib.Z_FULL_FLUSH)
    return itertools.chain([head], itertools.repeat(again, (BOMB >> 20) - 1))


def _said(text: object, charset: str = "utf-8") -> bytes:
    message = {"role": "assistant", "content": text}
    reply = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    return json.dumps(reply).encode(charset)


HARM: dict[str, tuple[int, dict[str, str], Callable[[], Iterable[bytes]], str]] = {
    "gzip bomb": (200, {"Content-Encoding": "gzip"}, lambda: _blocks(31), "more than the 4,"),
    "deflate bomb": (200, {"Content-Encoding": "deflate"}, lambda: _blocks(15), "more than the 4,"),
    "bare deflate bomb": (200, {"Content-Encoding": "deflate"}, lambda: _blocks(-15), "more than the 4,"),
    "gzip of nothing": (
        200,
        {"Content-Encoding": "gzip"},
        lambda: itertools.chain([zlib.compressobj(wbits=31).flush()[:10]], itertools.repeat(b"\0\0\0\xff\xff" * 9999)),
        "more than the 4,",
    ),
    "two members": (
        200,
        {"Content-Encoding": "gzip"},
        lambda: [zlib.compress(_said("Hi"), wbits=31), zlib.compress(b" ", wbits=31)],
        "goes on after the end of its gzip",
    ),
    "no gzip": (200, {"Content-Encoding": "gzip"}, lambda: [_said("Hi")], "cannot be unpacked as gzip"),
    "brotli": (200, {"Content-Encoding": "br"}, lambda: [b"\x0b\x02\x80Hi\x03"], "packed as 'br'"),
    "endless": (200, {}, lambda: itertools.repeat(b" " * (1 << 16)), "more than the 4,"),
    "deep": (200, {}, lambda: [b"[" * 100_000 + b"]" * 100_000], "more than 100 levels deep"),
    "deep and open": (200, {}, lambda: [b'{"a":' * 100_000], "more than 100 levels deep"),
    "unending text": (200, {}, lambda: [b'"' + b'\\"' * 1_000_000], "no JSON"),
    "utf-16": (
        200,
        {"Content-Type": "application/json; charset=utf-16"},
        lambda: [_said("Hi", "utf-16")],
        "character set 'utf-16'",
    ),
    "bz2": (200, {"Content-Type": "application/json; charset=bz2"}, lambda: [_said("Hi")], "character set 'bz2'"),
    "error": (503, {"Content-Encoding": "gzip"}, lambda: _blocks(31), "status 503"),
    "packed error": (503, {"Content-Encoding": "br"}, lambda: [b"\x0b\x02\x80Hi\x03"], "status 503"),
}
"""Name -> status, headers, body, and what the message about it says."""
GOOD: dict[str, tuple[dict[str, str], list[bytes]]] = {
    "plain": ({}, [_said("Hi")]),
    "gzip": ({"Content-Encoding": "gzip"}, [zlib.compress(_said("Hi"), wbits=31)]),
    "deflate": ({"Content-Encoding": "deflate"}, [zlib.compress(_said("Hi"))]),
    "bare deflate": ({"Content-Encoding": "deflate"}, [zlib.compress(_said("Hi"), wbits=-15)]),
    "ascii": ({"Content-Type": "application/json; charset=us-ascii"}, [_said("Hi")]),
}


@dataclass
class HostileServer(LoopbackServer):
    """Names a model, and answers every other route with one body."""

    body: Callable[[], Iterable[bytes]]
    headers: dict[str, str]
    status: int = 200

    @classmethod
    def of(cls, harm: str) -> HostileServer:
        """One of :data:`HARM`."""
        status, headers, body, _ = HARM[harm]
        return cls(body, headers, status)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        served = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                if self.path == "/v1/models":
                    self._send(200, {}, [MODELS])
                else:
                    self._send(served.status, served.headers, served.body())

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                self._send(served.status, served.headers, served.body())

            def _send(self, status: int, headers: dict[str, str], pieces: Iterable[bytes]) -> None:
                self.send_response(status)
                for name, value in {"Content-Type": "application/json", **headers}.items():
                    self.send_header(name, value)
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                with suppress(OSError):  # who reads within limits closes the connection
                    for piece in pieces:
                        self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                    self.wfile.write(b"0\r\n\r\n")

            def handle(self) -> None:
                with suppress(ConnectionResetError):
                    super().handle()

            def log_message(self, *_: object) -> None:
                pass

        return Handler
