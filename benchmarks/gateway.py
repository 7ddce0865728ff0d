"""What the gateway adds to a turn, and turns per second on one core: ``python -m benchmarks.gateway``.

A raw client sends the same requests to a bare aiohttp server, which answers with canned bytes, and to the gateway with
a sampler that answers at once. Every conversation has eight turns, each with its whole history as clients send it.
Servers run in a process of their own, whose CPU time is counted, too: it says the same on a busy machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web

from gspo_lightning.core.turn import Turn
from gspo_lightning.rollouts.gateway.server import Gateway
from gspo_lightning.rollouts.gateway.session import Session
from gspo_lightning.rollouts.gateway.trace import Message, SampledTurn

TURNS = 8
"""Turns of a conversation."""
SAID = "The tool says that 37 times 46 plus 18 is what I have to look at again before I answer. " * 2
TOLD = "A result of a tool, of a length that is usual for a search or a program that has printed a few lines. " * 3
_VOCABULARY = 512


class Characters:
    """Codec with a token for every four characters."""

    longest_token = 4

    def opening(self, messages: Sequence[Message], tools: Sequence[Message]) -> list[int]:
        return _ids(messages)

    def reply(
        self, messages: Sequence[Message], last: int, tools: Sequence[Message], calls: Sequence[Message]
    ) -> list[int]:
        return _ids(messages)

    def parse(
        self, token_ids: Sequence[int], stop: Sequence[str], tools: Sequence[Message], context: Sequence[int] = ()
    ) -> Turn:
        return Turn(SAID)


def _ids(messages: Sequence[Message]) -> list[int]:
    text = "".join(str(m["content"]) for m in messages)
    return [ord(text[i]) % _VOCABULARY for i in range(0, len(text), 4)]


class Instant:
    """Sampler that answers at once."""

    piece = SampledTurn(tuple(range(1, 1 + len(SAID) // 4)), (-1.0,) * (len(SAID) // 4))

    async def sample(
        self, session: Session, context: tuple[int, ...], budget: int, stop: tuple[str, ...], place: int
    ) -> SampledTurn:
        return self.piece


async def serve(kind: str) -> None:
    """Serve until stdin ends; the first line of stdout has the URL and the admin key."""
    if kind == "bare":
        url, key = await _bare(), ""
    else:
        gateway = Gateway(lambda name: Session(name, Characters(), Instant(), 1 << 20))
        await gateway.start()
        url, key = gateway.url, gateway.admin_key
    print(json.dumps({"url": url, "key": key}), flush=True)
    loop = asyncio.get_running_loop()
    while await loop.run_in_executor(None, sys.stdin.readline):
        used = resource.getrusage(resource.RUSAGE_SELF)
        print(json.dumps({"cpu_s": used.ru_utime + used.ru_stime}), flush=True)


async def _bare() -> str:
    choice = {"index": 0, "message": {"role": "assistant", "content": SAID}, "finish_reason": "stop"}
    canned = json.dumps({"id": "c", "object": "chat.completion", "choices": [choice]}).encode()

    async def answer(request: web.Request) -> web.Response:
        json.loads(await request.read())
        return web.Response(body=canned, content_type="application/json")

    app = web.Application()
    app.router.add_post("/{rest:.*}", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return f"http://127.0.0.1:{runner.addresses[0][1]}"


class Server:
    """A server in a process of its own."""

    def __init__(self, kind: str) -> None:
        command = [sys.executable, "-m", "benchmarks.gateway", "--serve", kind]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        said = self._line()
        self.port, self.key = int(said["url"].rpartition(":")[2]), said["key"]

    def cpu_s(self) -> float:
        """CPU seconds so far."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return float(self._line()["cpu_s"])

    def close(self) -> None:
        """End the process."""
        self._process.communicate(timeout=20)

    def _line(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        found: dict[str, Any] = json.loads(self._process.stdout.readline())
        return found


@dataclass(slots=True)
class Client:
    """Raw HTTP/1.1 over one connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def post(self, path: str, key: str, body: bytes) -> bytes:
        """One request and its answer's body."""
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\nContent-Length: {len(body)}\r\n\r\n"
        self.writer.write(head.encode() + body)
        answer = await self.reader.readuntil(b"\r\n\r\n")
        length = next(int(line[15:]) for line in answer.split(b"\r\n") if line.lower().startswith(b"content-length:"))
        assert answer.startswith(b"HTTP/1.1 200"), answer
        return await self.reader.readexactly(length)


def bodies() -> list[bytes]:
    """The requests of a conversation."""
    talk: list[dict[str, str]] = [{"role": "system", "content": TOLD}, {"role": "user", "content": SAID}]
    found = []
    for _ in range(TURNS):
        found.append(json.dumps({"model": "policy", "messages": talk}).encode())
        talk += [{"role": "assistant", "content": SAID}, {"role": "tool", "content": TOLD}]
    return found


async def load(server: Server, conversations: int, connections: int) -> tuple[list[float], float]:
    """Seconds of every turn, and of all together, of conversations over some connections at the same time."""
    requests, seconds, left = bodies(), list[float](), iter(range(conversations))

    async def one() -> None:
        client = Client(*await asyncio.open_connection("127.0.0.1", server.port))
        for _ in left:
            path, key = "/v1/chat/completions", ""
            if server.key:
                opened = json.loads(await client.post("/sessions", server.key, b"{}"))
                path, key = f"/s/{opened['id']}{path}", opened["api_key"]
            for body in requests:
                begun = time.perf_counter()
                await client.post(path, key, body)
                seconds.append(time.perf_counter() - begun)
        client.writer.close()

    begun = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(connections)))
    return seconds, time.perf_counter() - begun


def measure(kind: str, conversations: int) -> dict[str, float]:
    """Milliseconds of a turn one after another, and turns per second of 64 connections at the same time."""
    server = Server(kind)
    try:
        asyncio.run(load(server, 8, 1))
        before = server.cpu_s()
        single, _ = asyncio.run(load(server, conversations, 1))
        between = server.cpu_s()
        many, wall = asyncio.run(load(server, conversations, 64))
        after = server.cpu_s()
    finally:
        server.close()
    return {
        "turn_ms": 1e3 * statistics.median(single), "turn_cpu_ms": 1e3 * (between - before) / len(single),
        "turns_per_s": len(many) / wall, "turns_per_cpu_s": len(many) / (after - between),
    }  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Measure both servers and print the difference."""
    parser = argparse.ArgumentParser("python -m benchmarks.gateway", description="Overhead of the gateway per turn.")
    parser.add_argument("--conversations", type=int, default=250, help=f"conversations of {TURNS} turns")
    parser.add_argument("--output", type=Path, help="write the numbers as JSON")
    parser.add_argument("--serve", choices=["bare", "gateway"], help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.serve:
        asyncio.run(serve(options.serve))
        return 0
    bare, ours = (measure(kind, options.conversations) for kind in ("bare", "gateway"))
    found = {"bare": bare, "gateway": ours, "overhead_ms": ours["turn_ms"] - bare["turn_ms"],
             "overhead_cpu_ms": ours["turn_cpu_ms"] - bare["turn_cpu_ms"]}  # fmt: skip
    for name, numbers in (("bare server", bare), ("gateway", ours)):
        print(f"{name:12}" + "".join(f"  {key} {value:8.3f}" for key, value in numbers.items()))
    print(f"the gateway adds {found['overhead_ms']:.2f} ms a turn ({found['overhead_cpu_ms']:.2f} ms of CPU)")
    if options.output:
        options.output.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
