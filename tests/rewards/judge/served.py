"""A server on loopback that replies as an OpenAI-compatible API does, and writes down what it was asked."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.support.loopback import LoopbackServer

Reply = str | tuple[int, Any] | None
"""The judge's words, or a status with a body (bytes are sent as they are), or a connection that is closed."""


@dataclass
class Asked:
    """One request."""

    body: dict[str, Any]
    headers: dict[str, str]

    @property
    def rules(self) -> str:
        return str(self.body["messages"][0]["content"])

    @property
    def texts(self) -> str:
        return str(self.body["messages"][1]["content"])

    @property
    def check(self) -> str:
        return str(self.body["response_format"]["json_schema"]["schema"]["properties"]["check"]["enum"][0])

    def text(self, name: str) -> str:
        """What stands in a fence."""
        return self.texts.split(f"<<<{name} {self.check}>>>\n")[1].split(f"\n<<<END {name} {self.check}>>>")[0]

    def verdict(self, **values: object) -> str:
        return json.dumps({"check": self.check, "reasoning": "so", "verdict": values})


@dataclass
class JudgeServer(LoopbackServer):
    """Hands every request to a judge."""

    judge: Callable[[Asked], Reply]
    delay_s: float = 0.0
    asked: list[Asked] = field(default_factory=list)
    active: int = 0
    most_active: int = 0

    def __post_init__(self) -> None:
        self._lock = threading.Lock()

    def _reply(self, path: str, headers: dict[str, str], content: bytes) -> Reply:
        if path != "/v1/chat/completions":
            return 404, {"error": path}
        with self._lock:
            self.asked.append(asked := Asked(json.loads(content), headers))
            self.active += 1
            self.most_active = max(self.most_active, self.active)
        time.sleep(self.delay_s)
        reply = self.judge(asked)
        with self._lock:
            self.active -= 1
        if isinstance(reply, str):
            message = {"role": "assistant", "content": reply}
            return 200, {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
        return reply

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        served = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                content = self.rfile.read(int(self.headers["Content-Length"]))
                reply = served._reply(self.path, dict(self.headers), content)
                with suppress(BrokenPipeError, ConnectionResetError):
                    if reply is None:
                        self.close_connection = True
                        return
                    assert not isinstance(reply, str)
                    status, body = reply
                    data = body if isinstance(body, bytes) else json.dumps(body).encode()
                    self.send_response(status)
                    if status == 429:
                        self.send_header("Retry-After", "0")
                    if status == 302:
                        self.send_header("Location", f"{served.url}/elsewhere")
                    self.send_header("Content-Length", str(len(data)))
                    self.end_headers()
                    self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                pass

        return Handler
