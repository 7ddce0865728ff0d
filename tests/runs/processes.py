"""Real processes that run ``main(argv)`` and can be killed: forked from a server that has paid for the imports."""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import multiprocessing
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from tests import ROOT
from tests.support.caller import default_signals

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(
    [
        "tests.conftest", "gspo_lightning.commands.fit.command", "tests.runs.processes",
        "gspo_lightning.commands.export", "tensorboard.summary", "torch.profiler", "torch.utils.tensorboard",
        "transformers.models.qwen3.modeling_qwen3", "s3fs",  # which Lightning looks for when it saves
    ]
)  # fmt: skip
"""With what a run imports on its way, or every process would import it again; what is not installed is left out."""
SECONDS = 120


def in_processes(target: Callable[..., None], *arguments: object, count: int = 2) -> None:
    """Runs ``target(number, *arguments)`` in as many processes at once; it must be importable, and none may fail."""
    with tempfile.TemporaryDirectory() as folder:
        logs = [Path(folder, str(number)) for number in range(count)]
        processes = [
            SERVER.Process(target=_logged, args=(str(log), target, number, *arguments))
            for number, log in enumerate(logs)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join(SECONDS)
            if process.is_alive():
                process.kill()
                process.join()
        failed = [(p.exitcode, log) for p, log in zip(processes, logs, strict=True) if p.exitcode]
        failures = "\n".join(f"{code}: {log.read_text() if log.is_file() else 'never began'}" for code, log in failed)
        assert [process.exitcode for process in processes] == [0] * count, failures


def run_module(
    module: str, *arguments: str, cwd: Path = ROOT, seconds: float = 400.0
) -> subprocess.CompletedProcess[str]:
    """``python -m module arguments``, but for the imports, which its parent has made already."""
    with tempfile.TemporaryDirectory() as folder:
        shown = [Path(folder, stream) for stream in ("stdout", "stderr")]
        process = SERVER.Process(target=_as_main, args=(str(cwd), module, arguments, *map(str, shown)))
        process.start()
        process.join(seconds)
        if process.is_alive():
            process.kill()
            process.join()
        code = process.exitcode if process.exitcode is not None else -1
        return subprocess.CompletedProcess((module, *arguments), code, *(file.read_text() for file in shown))


def _as_main(cwd: str, module: str, arguments: Sequence[str], stdout: str, stderr: str) -> None:
    os.chdir(cwd)
    for descriptor, file in enumerate((stdout, stderr), start=1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor)
    sys.stdout, sys.stderr = (os.fdopen(descriptor, "w", buffering=1) for descriptor in (1, 2))
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _logged(log: str, target: Callable[..., None], *arguments: object) -> None:
    _write_to(log)
    faulthandler.dump_traceback_later(SECONDS - 10)  # where a process hangs
    target(*arguments)
    faulthandler.cancel_dump_traceback_later()


def _write_to(log: str) -> None:
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w", buffering=1), os.fdopen(2, "w", buffering=1)


@dataclass
class Command:
    """One ``gspo`` command as one process a rank."""

    argv: Sequence[str]
    ranks: int = 1
    kill_at: str = ""
    """``module:Class.method:3`` (or ``module:function:3``): SIGKILL itself when that is called the third time."""
    log: Path = Path(os.devnull)
    prepare: Callable[[], None] | None = None
    """Called in the process before the command; must be importable."""
    processes: list[BaseProcess] = field(default_factory=list)

    def start(self) -> Command:
        """Start every rank."""
        port = free_port()
        for rank in range(self.ranks):
            environment = {} if self.ranks == 1 else _rank(rank, self.ranks, port)
            arguments = (list(self.argv), environment, self.kill_at, str(self.log), self.prepare)
            process = SERVER.Process(target=_child, args=arguments)
            process.start()
            self.processes.append(process)
        return self

    def wait(self, seconds: float = 300.0) -> list[int | None]:
        """Exit codes of the ranks; a rank that is killed takes the others with it."""
        end = time.monotonic() + seconds
        while any(p.is_alive() for p in self.processes):
            if any(p.exitcode == -signal.SIGKILL for p in self.processes):
                self.kill()
            if time.monotonic() > end:
                self.kill()
                raise TimeoutError(self.log.read_text() if self.log.is_file() else "no log")
            time.sleep(0.005)
        return [p.exitcode for p in self.processes]

    def kill(self, signum: int = signal.SIGKILL) -> None:
        """Send a signal to every rank."""
        for process in self.processes:
            if process.is_alive() and process.pid is not None:
                with contextlib.suppress(ProcessLookupError):  # it ended in this moment
                    os.kill(process.pid, signum)


def _rank(rank: int, world: int, port: int) -> dict[str, str]:
    fixed = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "NODE_RANK": "0", "WORLD_SIZE": str(world)}
    return {**fixed, "LOCAL_RANK": str(rank)}


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _child(
    argv: list[str], environment: dict[str, str], kill_at: str, log: str, prepare: Callable[[], None] | None
) -> None:
    os.environ.update(environment)
    os.setsid()  # a Ctrl-C at the test runner's terminal is not for this process
    _write_to(log)
    default_signals()
    from gspo_lightning.cli import main

    if kill_at:
        _arm(kill_at)
    if prepare is not None:
        prepare()
    code = main(argv)
    sys.stdout.flush()
    sys.exit(code)


def _arm(kill_at: str) -> None:
    module, name, count = kill_at.split(":")
    *path, last = name.split(".")
    owner: Any = importlib.import_module(module)
    for part in path:
        owner = getattr(owner, part)
    original, calls = getattr(owner, last), []

    def armed(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) == int(count):
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*args, **kwargs)

    setattr(owner, last, armed)
