"""Agents in Python: a function that runs in worker processes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gspo_lightning.core.errors import InfrastructureError, UserError, first_line
from gspo_lightning.core.registry import plugin_files, see_folder
from gspo_lightning.rewards.workers.interpreter import module_command
from gspo_lightning.rollouts.agents.agent import Agent, Outcome
from gspo_lightning.rollouts.gateway.address import Address
from gspo_lightning.rollouts.gateway.agent_worker import LINE_BYTES
from gspo_lightning.rollouts.gateway.bounds import LOOP_BYTES

_START_S = 60.0
"""Seconds in which a process must have imported its function."""
_END_S = 5.0
"""Seconds that a process has to end what it has started."""


class AgentError(RuntimeError):
    """Failure of an agent's own code, as its process told it."""


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """Settings of an agent's process.

    Args:
        python: interpreter; None: the trainer's, with its ``sys.path``.
        arguments: of the class that ``function`` names; None if it names a function.
        option: name of the option to blame where it cannot be used.
        blame: makes the error where the process says why it cannot be used; None: the option is blamed.
    """

    python: str | None = None
    arguments: Mapping[str, Any] | None = None
    option: str = "PythonAgent.function"
    blame: Callable[[str], UserError] | None = None


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
        self.function = name
        self.processes = processes
        self.settings = WorkerSettings()
        self._workers: list[_Worker] = []
        self._next = 0

    async def open(self) -> None:
        """Start the processes.

        Raises:
            UserError: the function cannot be imported, or does not take two arguments.
        """
        see_folder(Path.cwd())
        self._workers = [_Worker(self.function, self.settings) for _ in range(self.processes)]
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
        workers = self._workers
        self._workers = []
        await asyncio.gather(*(worker.stop() for worker in workers))


class _Worker:
    """One process, and the calls that wait for it."""

    def __init__(self, function: str, settings: WorkerSettings) -> None:
        self.function = function
        self.settings = settings
        self._process: Process | None = None
        self._listener: asyncio.Task[None] | None = None
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._count = 0
        self._starting = asyncio.Lock()

    async def start(self) -> None:
        """Start the process, and wait until it has imported the function."""
        command, variables = module_command("gspo_lightning.rollouts.gateway.agent_worker", self.settings.python)
        try:
            self._process = await asyncio.create_subprocess_exec(
                *command, stdin=PIPE, stdout=PIPE, limit=LINE_BYTES, start_new_session=True, env=variables
            )
        except OSError as error:
            raise UserError(self.settings.option.partition(".")[0] + ".python", f"cannot be run: {error}") from error
        path, _, name = self.function.rpartition(".")
        module, file = _plugin(path)
        self._say(
            {
                "function": f"{module}.{name}",
                "file": file,
                "sys_path": sys.path if self.settings.python is None else None,
                "arguments": self.settings.arguments,
                "parent": os.getpid(),
            }
        )
        assert self._process.stdout is not None
        try:
            line = await asyncio.wait_for(self._process.stdout.readline(), _START_S)
        except TimeoutError:
            line = b""
        answer = json.loads(line or b'{"broken": "its process ended, or did not start in a minute"}')
        if "broken" in answer:
            await self.stop()
            if self.settings.blame is not None:
                raise self.settings.blame(answer["broken"])
            raise UserError(self.settings.option, f"{self.function} cannot be used: {answer['broken']}")
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
        process = self._process
        listener = self._listener
        self._process = None
        self._listener = None
        if listener is not None:
            listener.cancel()
            await asyncio.gather(listener, return_exceptions=True)
        if process is not None:
            assert process.stdin is not None
            process.stdin.close()  # with which it ends what it has started outside of its group
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), _END_S)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
            process._transport.close()  # type: ignore[attr-defined]  # or it waits for the end of an output nobody reads
            await process.wait()

    def _say(self, message: Mapping[str, Any]) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        line = json.dumps(message, default=str).encode() + b"\n"
        if len(line) > LINE_BYTES:
            raise AgentError(f"the record has {len(line)} bytes as JSON, of at most {LINE_BYTES}")
        self._process.stdin.write(line)

    async def _listen(self, process: Process) -> None:
        assert process.stdout is not None
        why = "the agent's process died"
        try:
            while line := await process.stdout.readline():
                self._settle(json.loads(line) if len(line) <= LOOP_BYTES else await asyncio.to_thread(json.loads, line))
        except ValueError as error:
            why = f"the agent's process wrote no answer: {first_line(error)}"
        finally:
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(AgentError(why))

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
