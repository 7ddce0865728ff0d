"""Worker process of ``PythonAgent``: ``python -m gspo_lightning.rollouts.gateway.agent_worker``, JSON lines in and out.

The first line has ``function``, its ``file`` if it is a plug-in, ``sys_path`` (null: its own), ``parent``, and
``arguments``: null, or those of a class that ``function`` names, whose objects have ``play(record, address)`` and
``end()``. The answer is ``{"ready": true}`` or ``{"broken": why}``. Each further line is
``{"id", "record", "address"}`` or ``{"cancel": id}``; the answers are ``{"id", "value"}`` or
``{"id", "error", "kind"}``, in any order. The process never imports torch, unless the agent does.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import importlib
import inspect
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gspo_lightning.core.errors import InfrastructureError, place_of
from gspo_lightning.core.registry import load_source
from gspo_lightning.rewards.workers.worker import die_with_parent, take_over_pipes
from gspo_lightning.rollouts.gateway.address import Address

LINE_BYTES = 64 << 20
"""Longest line: a record with its messages, or what an agent returned."""
_WORDS = 10_000
"""Characters of an exception's message that are passed on."""
_ORPHANED = signal.SIGRTMAX
"""Signal of the kernel when the trainer is gone; nothing else uses it."""
_THREADS = 256
"""Plain functions that run at the same time."""
_AT_END: list[Callable[[], None]] = []
"""Called before this process kills its group: what an agent has started may have left the group."""


class AnswerTooLongError(ValueError):
    """Error of an agent whose answer is too long to be passed on."""


def main() -> int:
    """Serve until stdin ends."""
    requests, answers = take_over_pipes()
    with os.fdopen(requests, "rb", buffering=0) as pipe, os.fdopen(answers, "wb", buffering=0) as out:
        return asyncio.run(_serve(pipe, out))


async def _serve(pipe: Any, out: Any) -> int:
    loop = asyncio.get_running_loop()
    loop.set_default_executor(concurrent.futures.ThreadPoolExecutor(_THREADS, thread_name_prefix="agent"))
    reader = asyncio.StreamReader(limit=LINE_BYTES)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)

    def say(**message: Any) -> None:
        line = json.dumps(message, default=str).encode() + b"\n"
        if len(line) > LINE_BYTES:
            raise AnswerTooLongError(f"the answer has {len(line)} bytes as JSON, of at most {LINE_BYTES}")
        view = memoryview(line)
        while view:
            view = view[out.write(view) :]

    setup = json.loads(await reader.readline() or b"null")
    if setup is None:
        return 0
    _die_with_parent(setup["parent"])
    try:
        function = _function(setup)
    except BaseException as error:
        say(broken=f"{type(error).__name__}: {error}"[:_WORDS])
        return 1
    say(ready=True)
    running: dict[int, asyncio.Task[None]] = {}
    while line := await reader.readline():
        task = json.loads(line)
        if "cancel" in task:
            if task["cancel"] in running:
                running[task["cancel"]].cancel()
            continue
        number = task["id"]
        running[number] = asyncio.ensure_future(_one(function, task, say))
        running[number].add_done_callback(lambda _, number=number: running.pop(number, None))  # type: ignore[misc]
    _end()
    return 0


def _die_with_parent(parent: int) -> None:
    """End this process and the programs it has started when the trainer is gone, however busy the agent is."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {_ORPHANED})
    threading.Thread(target=_end_when_orphaned, daemon=True).start()
    die_with_parent(parent, _ORPHANED)


def _end_when_orphaned() -> None:
    signal.sigwait({_ORPHANED})
    _end()


def _end() -> None:
    """End this process, which leads its group, with the group, and without waiting for threads of plain functions."""
    for end in _AT_END:
        with contextlib.suppress(Exception):
            end()
    os.killpg(os.getpid(), signal.SIGKILL)


async def _one(function: Callable[..., Any], task: Mapping[str, Any], say: Callable[..., None]) -> None:
    address = Address(**task["address"])
    try:
        if inspect.iscoroutinefunction(function):
            value = await function(task["record"], address)
        else:
            value = await asyncio.to_thread(function, task["record"], address)
        say(id=task["id"], value=value)
    except InfrastructureError as error:
        say(id=task["id"], error=str(error)[:_WORDS], kind="environment")
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        at = place_of(error)
        problem = f"{type(error).__name__}: {error}"[:_WORDS] + (f" ({at})" if at else "")
        say(id=task["id"], error=problem, kind="agent")


def _function(setup: Mapping[str, Any]) -> Callable[..., Any]:
    sys.path[:] = setup["sys_path"] or [*sys.path, os.getcwd()]
    module, _, name = setup["function"].rpartition(".")
    if setup["file"]:
        load_source(module, Path(setup["file"]))
    function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    if setup["arguments"] is not None:
        player = function(**setup["arguments"])
        _AT_END.append(player.end)
        function = player.play
    inspect.signature(function).bind({}, None)
    return function


if __name__ == "__main__":
    sys.exit(main())
