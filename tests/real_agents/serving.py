"""A server in a process of its own, on a port that is free."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

START_S = 120.0


@contextmanager
def on_free_port(command: Sequence[str]) -> Iterator[int]:
    """Run a command, whose last argument is its port, from when it listens to the end of the block."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    process = subprocess.Popen([*command, str(port)])
    try:
        until = time.monotonic() + START_S
        while time.monotonic() < until:
            with socket.socket() as probe:
                if not probe.connect_ex(("127.0.0.1", port)):
                    break
            time.sleep(0.1)
        yield port
    finally:
        process.kill()
        process.wait()
