"""The server of the page in a thread of its own, for tests."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gspo_lightning.commands.view import open_runs
from gspo_lightning.report.view.server import ViewServer


@contextlib.contextmanager
def served(folders: Sequence[Path], token: str = "") -> Iterator[str]:
    """Serve runs, all of whose responses are read; yields the address."""
    runs = open_runs(folders)
    for run in runs:
        run.refresh()
    loop = asyncio.new_event_loop()
    loop.set_default_executor(ThreadPoolExecutor(4))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    server = ViewServer(runs, token=token)
    try:
        yield asyncio.run_coroutine_threadsafe(server.start(), loop).result(30)
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result(30)
        asyncio.run_coroutine_threadsafe(loop.shutdown_default_executor(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
        loop.close()
