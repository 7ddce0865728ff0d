"""Agents as commands: a program of any language, in the sandbox, that talks to the gateway."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import stat
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from gspo_lightning.core.errors import InfrastructureError, UserError
from gspo_lightning.core.escape import whole
from gspo_lightning.core.variables import check_variables, read_variables, without_secrets
from gspo_lightning.rewards.sandbox import Isolation, Kind, Limits, choose
from gspo_lightning.rewards.sandbox.agents import PORT, AgentSandbox, Ended
from gspo_lightning.rewards.sandbox.inside import landlock
from gspo_lightning.rewards.sandbox.launch import NOBODY
from gspo_lightning.rollouts.agents.agent import Agent, Outcome
from gspo_lightning.rollouts.agents.command_result import read_result
from gspo_lightning.rollouts.gateway.address import Address

ENVIRONMENT = "CommandAgent.environment"
_INSTALL = "install bubblewrap (make sandbox, or apt-get install bubblewrap), or use Linux 6.7 or newer"
_MOST_LINKS = 40
"""Links that Linux follows in one name."""
_NO_PATH = "/usr/local/bin:/usr/bin:/bin"
_SHARED = frozenset(map(Path, ("/", "/usr", "/usr/local", "/bin", "/home", "/root", "/tmp", "/var", "/opt", "/etc")))
"""Folders that are never given to an agent as the folder of a file."""


class CommandAgent(Agent):
    """A command that is run once for every rollout, in the sandbox.

    It reads the record as JSON on standard input, and finds ``OPENAI_BASE_URL`` (ends in ``/v1``), ``OPENAI_API_KEY``,
    ``ANTHROPIC_BASE_URL`` (does not) and ``ANTHROPIC_API_KEY`` in its environment, which is empty otherwise but for
    ``PATH``, ``HOME`` and ``LANG``. If its last line of output is ``{"reward": x}``, that is the reward; so code that
    the policy wrote must not share its output. An exit code other than 0 is a failure of the agent.

    It may read the files that the command names, their folders and the environment of its interpreter, and write to
    its own folder (``HOME``), which is removed. It may start programs, and reach the gateway and nothing else.

    Args:
        command: program and arguments; ``python`` is the interpreter of the trainer.
        environment: further variables. ``$NAME`` is the trainer's variable NAME, as for keys: a run saves its config.
        paths: further files and folders that it may read.
        isolation: ``auto`` takes bubblewrap, else Landlock (with version 4 or newer); ``unsafe`` has limits only.
        cpu_s: seconds of CPU time, of all its processes together.
        memory_mb: MiB of all its processes together.
        disk_mb: MiB in its own folder.

    Raises:
        UserError: the program is not found, a folder is too wide to be shown to it, or a secret is given by its value.
    """

    def __init__(
        self,
        command: list[str],
        environment: dict[str, str] | None = None,
        paths: list[str] | None = None,
        isolation: Literal["auto", "bubblewrap", "landlock", "unsafe"] = "auto",
        cpu_s: float = 120.0,
        memory_mb: int = 2048,
        disk_mb: int = 256,
    ) -> None:
        for name, value, least in (("cpu_s", cpu_s, 0.1), ("memory_mb", memory_mb, 16), ("disk_mb", disk_mb, 1)):
            if not least <= value < float("inf"):
                raise UserError(f"CommandAgent.{name}", f"is {value}; it must be at least {least}")
        self.command = Command.of(command, paths or ())
        self.environment = check_variables(environment or {}, ENVIRONMENT)
        self.isolation = isolation
        self.limits = Limits(cpu_s, memory_mb, tasks=128, disk_mb=disk_mb, files=4096, descriptors=1024)
        self._relay: _Relay | None = None
        self._relaying = asyncio.Lock()
        self._isolation: Isolation | None = None

    async def open(self) -> None:
        """Choose the isolation, and check that the command can be read in it.

        Raises:
            UserError: no isolation for agents works here, a file cannot be read, or a variable is not set.
        """
        if self._isolation is not None:
            return
        isolation = await asyncio.to_thread(choose, self.isolation)
        if isolation.kind is Kind.LANDLOCK and landlock.abi() < landlock.AGENTS_ABI:
            problem = f"of Landlock is version {landlock.abi()} here, which cannot restrict connections to a port"
            raise UserError("CommandAgent.isolation", problem, fix=_INSTALL)
        try:
            ended = await self._in_thread(isolation, (), {}, "", port=PORT)
        except InfrastructureError:
            for path in self.command.paths:
                closed = _closed_folder(path, isolation.kind)
                if closed:
                    raise _unreadable(path, closed, isolation.kind) from None
            raise
        if ended.status:
            path, _, closed = ended.stderr.partition("\0")
            raise _unreadable(path or "files", closed, isolation.kind)
        self._isolation = isolation

    async def run(self, record: Mapping[str, Any], address: Address) -> Outcome:
        """Run the command for one record.

        Raises:
            RuntimeError: it failed, or used more than its limits allow.
            ValueError: the reward that it printed is no finite number.
            InfrastructureError: the sandbox failed.
            UserError: the gateway listens on a socket file, which this isolation cannot reach.
        """
        assert self._isolation is not None
        kind = self._isolation.kind
        port = urlsplit(address.base_url).port or 0
        socket = ""
        if kind is Kind.BUBBLEWRAP:
            socket = address.socket or await self._relayed(port)
            inside = f"http://127.0.0.1:{PORT}{urlsplit(address.base_url).path}"
            address = replace(address, base_url=inside)
        elif address.socket:
            fix = "leave AgentRollouts.socket empty, or install bubblewrap"
            raise UserError("AgentRollouts.socket", f"is a file, which an agent cannot reach with {kind}", fix=fix)
        task = whole(json.dumps(record, default=str, ensure_ascii=False))
        ended = await self._in_thread(self._isolation, self.command.words, address.environment(), task, socket, port)
        stdout, stderr = (without_secrets(text, self.environment) for text in (ended.stdout, ended.stderr))
        return read_result(replace(ended, stdout=stdout, stderr=stderr), self.limits)

    async def close(self) -> None:
        """End the way to the gateway."""
        relay = self._relay
        self._relay = None
        if relay is not None:
            await relay.stop()

    async def _relayed(self, port: int) -> str:
        """Return a socket file that leads to a port of this machine."""
        async with self._relaying:
            if self._relay is None or self._relay.port != port:
                await self.close()
                self._relay = _Relay(port)
                await self._relay.start()
            return self._relay.path

    async def _in_thread(
        self,
        chosen: Isolation,
        words: Sequence[str],
        told: Mapping[str, str],
        stdin: str,
        socket: str = "",
        port: int = 0,
    ) -> Ended:
        """Run in a thread of its own: a sandbox ends with the thread that started it. If cancelled, end it first."""
        future: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()
        boxes: list[AgentSandbox] = []
        stopped = threading.Event()
        variables = read_variables(self.environment, ENVIRONMENT)
        env = {"PATH": self.command.search, "HOME": "/tmp", "TMPDIR": "/tmp", "LANG": "C.UTF-8"}

        def work() -> None:
            result: Ended | BaseException
            try:
                box = AgentSandbox(chosen.kind, chosen.python, self.command.paths, self.limits, socket, port)
                boxes.append(box)
                try:
                    if stopped.is_set():
                        box.stop()
                    here = dict.fromkeys(("HOME", "TMPDIR"), box.folder)
                    result = box.run(
                        words, env | here | variables | dict(told), self.command.folder or box.folder, stdin,
                        self.command.needs,
                    )  # fmt: skip
                finally:
                    box.close()
            except BaseException as error:
                result = error
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(_settle, future, result)

        loop = asyncio.get_running_loop()
        thread = threading.Thread(target=work, name="agent-command", daemon=True)
        thread.start()
        try:
            return await future
        except asyncio.CancelledError:
            stopped.set()
            for box in boxes:
                box.stop()
            await asyncio.to_thread(thread.join, 10.0)
            raise


@dataclass(frozen=True, slots=True)
class Command:
    """A command with absolute names: its words, what it may read, the folder it runs in, and the search path.

    ``needs`` are the paths that are read at its start: those that it may read, its program and the files that it names.
    """

    words: tuple[str, ...]
    paths: tuple[str, ...]
    needs: tuple[str, ...]
    folder: str
    search: str

    @classmethod
    def of(cls, command: Sequence[str], more: Sequence[str]) -> Command:
        """Find the files of a command.

        Raises:
            UserError: see :class:`CommandAgent`.
        """
        if not command or not all(isinstance(word, str) and "\0" not in word for word in command):
            raise UserError("CommandAgent.command", "is not a list of words", fix="write command: [python, agent.py]")
        python = command[0] in ("python", "python3")
        program = sys.executable if python else shutil.which(command[0])
        if program is None:
            raise UserError("CommandAgent.command", f"names {command[0]!r}, which is no program here")
        program = os.path.abspath(program)
        named = [os.path.abspath(word) if os.path.exists(word) else "" for word in command[1:]]
        files = [path for path in named if path]
        if os.path.basename(os.path.dirname(program)) != "bin":  # the agent itself
            files.insert(0, program)
        folders = [path if os.path.isdir(path) else os.path.dirname(path) for path in files]
        folders += [os.path.abspath(path) for path in more]
        for folder in folders:
            _check_folder(folder)
        environment = [path for name in (program, *_shebang(program)) for path in _environment_of(name)]
        targets = [path for file in files if not os.path.isdir(file) for path in _links(file)[1:]]
        words = (program, *(path or word for path, word in zip(named, command[1:], strict=True)))
        search = dict.fromkeys([os.path.dirname(program), *_NO_PATH.split(":")])
        paths = tuple(path for path in dict.fromkeys([*environment, *folders, *targets]) if os.path.exists(path))
        needs = tuple(dict.fromkeys([*paths, program, *files]))
        return cls(words, paths, needs, folders[0] if files else "", ":".join(search))


def _check_folder(folder: str) -> None:
    if not os.path.exists(folder):
        raise UserError("CommandAgent.paths", f"names {folder}, which does not exist")
    if _is_wide(folder):
        fix = "move the agent to a folder of its own, which holds nothing that it must not read"
        raise UserError("CommandAgent.command", f"would show all of {folder} to the agent", fix=fix)


def _shebang(program: str) -> list[str]:
    """Return the programs that a script's first line names."""
    with contextlib.suppress(OSError), open(program, "rb") as file:
        if file.read(2) == b"#!":
            words = file.readline(300).decode("utf-8", "replace").split()
            programs = words[:1]
            if programs and os.path.basename(programs[0]) == "env":
                programs += [path for word in words[1:2] if (path := shutil.which(word)) is not None]
            return programs
    return []


def _environment_of(program: str) -> list[str]:
    """Return what a program needs: its (virtual) environment, and the installation that it links to."""
    paths: list[str] = []
    for name in _links(program):
        folder = os.path.dirname(name)
        prefix = os.path.dirname(folder)
        if os.path.basename(folder) != "bin":
            paths.append(name)
        elif _is_wide(prefix):
            paths.append(folder)
            if prefix not in ("/", "/usr"):  # whose libraries are always there
                paths.append(os.path.join(prefix, "lib"))
        else:
            paths.append(prefix)
    return paths


def _links(program: str) -> list[str]:
    """Return a file and what it leads to, link by link: in an empty root each of them must be there."""
    names = [program]
    while os.path.islink(names[-1]) and len(names) < _MOST_LINKS:
        folder = os.path.dirname(names[-1])
        names.append(os.path.normpath(os.path.join(folder, os.readlink(names[-1]))))
    return list(dict.fromkeys([*names, os.path.realpath(program)]))


def _closed_folder(path: str, kind: Kind) -> str:
    """Return the topmost folder above a path that a sandbox of root may not enter, or "".

    With Landlock that sandbox is started by nobody; with bubblewrap by root, but in a user namespace where root has no
    rights to the files of other users.
    """
    if os.geteuid() != 0:
        return ""
    users = {NOBODY, 0} if kind is Kind.BUBBLEWRAP else {NOBODY}
    for folder in reversed(Path(os.path.realpath(path)).parents):
        status = folder.stat()
        right = stat.S_IXGRP if status.st_gid in users else stat.S_IXOTH
        if status.st_uid in users:
            right = stat.S_IXUSR
        if not status.st_mode & right:
            return str(folder)
    return ""


def _unreadable(path: str, closed: str, kind: Kind) -> UserError:
    """Return the error for a path that the sandbox cannot read, with the folder that is closed to it."""
    root = os.geteuid() == 0
    reader = f"user {NOBODY} (nobody)" if root else "the sandbox"
    problem = f"names {path}, which {reader} cannot read"
    fix = f"give others the right to read it (chmod -R a+rX {closed or path}), or move it where they have it"
    if closed not in ("", path):
        problem = f"needs a folder that {reader} may not enter: {closed}, on the way to {path}"
        fix = f"give others the right to enter it (chmod a+x {closed}), or move what is below it"
        fix += ", or install bubblewrap, which shows only the files" if kind is Kind.LANDLOCK else ""
    return UserError("CommandAgent.command", problem, fix=fix)


def _is_wide(folder: str) -> bool:
    """True if a folder holds more than one thing: a system's, or the home of the user."""
    real = Path(os.path.realpath(folder))
    return real in _SHARED or Path.home().resolve().is_relative_to(real)


class _Relay:
    """A socket file that leads to a port of 127.0.0.1, for sandboxes without this machine's network."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._folder = tempfile.mkdtemp(prefix=f"gspo-sandbox-{os.getpid()}-")  # swept if this process is killed
        os.chmod(self._folder, 0o711)
        self.path = os.path.join(self._folder, "gateway")
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen."""
        self._server = await asyncio.start_unix_server(self._carry, self.path, backlog=1024)

    async def stop(self) -> None:
        """Stop listening, and remove the file."""
        if self._server is not None:
            self._server.close()
        await asyncio.to_thread(shutil.rmtree, self._folder, True)

    async def _carry(self, inner: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        try:
            outer, out = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            back.close()
            return
        await asyncio.gather(_pump(inner, out), _pump(outer, back), return_exceptions=True)
        for writer in (back, out):
            writer.close()


async def _pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    try:
        while piece := await source.read(1 << 16):
            target.write(piece)
            await target.drain()
        target.write_eof()
    except OSError:
        target.close()


def _settle(future: asyncio.Future[Ended], result: Ended | BaseException) -> None:
    if future.done():  # cancelled
        return
    if isinstance(result, BaseException):
        future.set_exception(result)
    else:
        future.set_result(result)
