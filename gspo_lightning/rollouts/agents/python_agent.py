"""Agents in Python: a function that runs in worker processes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gspo_lightning.errors import InfrastructureError, UserError
from gspo_lightning.gateway.address import Address
from gspo_lightning.gateway.agent_worker import LINE_BYTES
from gspo_lightning.registry import plugin_files, see_folder
from gspo_lightning.rollouts.agents.agent import Agent, Outcome

_START_S = 60.0


class AgentError(RuntimeError):
    """Failure of an agent's own code, as its process told it."""


class PythonAgent(Agent):
    """A function ``agent(record, address)``, ``async`` or plain, in processes that never import torch.

    ``address`` has what clients need: ``AsyncOpenAI(base_url=address.base_url, api_key=address.api_key)``, or
    ``AsyncAnthropic(base_url=address.anthropic_url, api_key=address.api_key)``. Plain functions run in threads.

    Args:
        function: dotted path (``plugins.agent.solve``), of a file in ``plugins:`` or of anything that can be imported;
            or a function at the top of a module.
        processes: worker processes; rollouts are dealt to them in turn.

    Raises:
        UserError: it is neither.
    """

    def __init__(self, function: str | Callable[..., Any], processes: int = 1) -> None:
        name = function if isinstance(function, str) else f"{function.__module__}.{function.__qualname__}"
        if not all(part.isidentifier() for part in name.split(".")) or "." not in name or name[:9] == "__main__.":
            fix = "write module.function, of a function at the top of a file that can be imported"
            raise UserError("PythonAgent.function", f"{name!r} is not a dotted path", fix=fix)
        if processes < 1:
            raise UserError("PythonAgent.processes", f"is {processes}; it must be at least 1")
        self.function, self.processes = name, processes
        self._workers: list[_Worker] = []
        self._next = 0

    async def open(self) -> None:
        """Start the processes.

        Raises:
            UserError: the function cannot be imported, or does not take two arguments.
        """
        see_folder(Path.cwd())
        self._workers = [_Worker(self.function) for _ in range(self.processes)]
        await asyncio.gather(*(worker.start() for worker in self._workers))

    @property
    def where(self) -> str:
        """Name of the function."""
        return self.function

    async def run(self, record: Mapping[str, Any], address: Address) -> Outcome:
        """Call the function in the next process; one that has died is started again."""
        self._next = (self._next + 1) % len(self._workers)
        worker = self._workers[self._next]
        return await worker.call(record, address)

    async def close(self) -> None:
        """End the processes."""
        workers, self._workers = self._workers, []
        await asyncio.gather(*(worker.stop() for worker in workers))


class _Worker:
    """One process, and the calls that wait for it."""

    def __init__(self, function: str) -> None:
        self.function = function
        self._process: Process | None = None
        self._listener: asyncio.Task[None] | None = None
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._count = 0
        self._starting = asyncio.Lock()

    async def start(self) -> None:
        """Start the process, and wait until it has imported the function."""
        home = str(Path(__file__).resolve().parents[3])
        path = os.pathsep.join(filter(None, (home, os.environ.get("PYTHONPATH"))))
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "gspo_lightning.gateway.agent_worker", stdin=PIPE, stdout=PIPE,
            limit=LINE_BYTES, start_new_session=True,
            env={**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        module, file = _plugin(self.function.rpartition(".")[0])
        function = f"{module}.{self.function.rpartition('.')[2]}"
        self._say({"function": function, "file": file, "sys_path": sys.path, "parent": os.getpid()})
        assert self._process.stdout is not None
        try:
            line = await asyncio.wait_for(self._process.stdout.readline(), _START_S)
        except TimeoutError:
            line = b""
        answer = json.loads(line or b'{"broken": "its process ended, or did not start in a minute"}')
        if "broken" in answer:
            await self.stop()
            raise UserError("PythonAgent.function", f"{self.function} cannot be used: {answer['broken']}")
        self._listener = asyncio.ensure_future(self._listen(self._process))

    async def call(self, record: Mapping[str, Any], address: Address) -> Outcome:
        """Run the function for one record; a cancelled call is cancelled there, too.

        Raises:
            AgentError: the function raised, or its process died.
            InfrastructureError: the function raised one.
        """
        async with self._starting:
            if self._listener is None or self._listener.done():
                await self.stop()
                await self.start()
        self._count += 1
        number = self._count
        self._waiting[number] = future = asyncio.get_running_loop().create_future()
        try:
            self._say({"id": number, "record": record, "address": asdict(address)})
            return await future
        except asyncio.CancelledError:
            with contextlib.suppress(Exception):
                self._say({"cancel": number})
            raise
        finally:
            self._waiting.pop(number, None)

    async def stop(self) -> None:
        """End the process and its children."""
        process, listener, self._process, self._listener = self._process, self._listener, None, None
        if listener is not None:
            listener.cancel()
            await asyncio.gather(listener, return_exceptions=True)
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
            await process.wait()
            process._transport.close()  # type: ignore[attr-defined]

    def _say(self, message: Mapping[str, Any]) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message, default=str).encode() + b"\n")

    async def _listen(self, process: Process) -> None:
        assert process.stdout is not None
        try:
            while line := await process.stdout.readline():
                self._settle(json.loads(line))
        finally:
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(AgentError("the agent's process died"))

    def _settle(self, answer: Mapping[str, Any]) -> None:
        future = self._waiting.get(answer["id"])
        if future is None or future.done():
            return
        if "error" in answer:
            kind = InfrastructureError if answer["kind"] == "environment" else AgentError
            future.set_exception(kind(answer["error"]))
        else:
            future.set_result(answer["value"])


def _plugin(module: str) -> tuple[str, str]:
    """Return the name and file of the plug-in that a module path means; the path itself and "" if it is none."""
    end = "/" + module.replace(".", "/") + ".py"
    files = {name: file for name, file in plugin_files().items() if name == module or file.endswith(end)}
    return next(iter(files.items()), (module, ""))
