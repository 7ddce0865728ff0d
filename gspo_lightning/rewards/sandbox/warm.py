"""The process behind a sandbox, and the pool of idle processes.

Starting a process is most of the cost of a program with one test, so a process is kept for the next program of this
thread. Its first process has never read a byte of any program: it forks a driver for each program, and the driver ends
with the program (``inside/driver.py``).
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import marshal
import os
import select
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Collection
from pathlib import Path
from typing import IO, Any

from gspo_lightning.core.errors import InfrastructureError
from gspo_lightning.core.temp_files import alive
from gspo_lightning.rewards.sandbox.launch import NOBODY, Interpreter, Kind, start

_PREFIX = "gspo-sandbox-"
_LARGEST_FRAME = 1 << 26
_MOST_PROGRAMS = 500
_MOST_WAITING = 4


class Driver:
    """A running sandbox, with or without a program.

    Args:
        kind: the isolation.
        python: the interpreter.
        layers: the layers to apply.
        channel: a file descriptor to pass on, or -1.

    Raises:
        InfrastructureError: the sandbox does not start.
    """

    def __init__(self, kind: Kind, python: Interpreter, layers: Collection[str], channel: int = -1) -> None:
        self.key = (kind, python)
        self.directory = "" if kind is Kind.BUBBLEWRAP else _working_directory(layers)
        self.programs = 0
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed by close)
        try:
            self.process = start(kind, python, layers, self._errors, channel)
        except OSError as error:
            self._clean()
            raise InfrastructureError(f"the sandbox ({kind}) does not start: {error}") from error

    def send(self, message: dict[str, Any] | None) -> None:
        """Write a frame; None ends the program.

        Raises:
            InfrastructureError: the sandbox has ended.
        """
        assert self.process.stdin is not None
        body = b"" if message is None else marshal.dumps(message, 4)  # what goes in is trusted; what comes out is JSON
        view = memoryview(len(body).to_bytes(4, "big") + body)
        try:
            while view:
                view = view[self.process.stdin.write(view) :]
        except BrokenPipeError as error:
            raise self._gone() from error

    def receive(self, seconds: float) -> dict[str, Any]:
        """Return the next frame.

        Raises:
            InfrastructureError: no frame came within ``seconds``, or the sandbox has ended.
        """
        until = time.monotonic() + seconds
        length = int.from_bytes(self._read(4, until), "big")
        if length > _LARGEST_FRAME:
            raise InfrastructureError(f"the sandbox sent a frame of {length} bytes")
        frame: dict[str, Any] = json.loads(self._read(length, until))
        return frame

    def close(self) -> None:
        """End the sandbox and remove all it left."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self._clean()

    def _clean(self) -> None:
        self._errors.close()
        if self.directory:
            shutil.rmtree(self.directory)

    def _read(self, count: int, until: float) -> bytes:
        assert self.process.stdout is not None
        source = self.process.stdout.fileno()
        pieces = bytearray()
        while len(pieces) < count:
            if not select.select([source], [], [], max(0.0, until - time.monotonic()))[0]:
                self.process.kill()
                raise InfrastructureError("the sandbox does not answer")
            piece = os.read(source, count - len(pieces))
            if not piece:
                raise self._gone()
            pieces += piece
        return bytes(pieces)

    def _gone(self) -> InfrastructureError:
        self.process.wait()
        self._errors.seek(0)
        lines = self._errors.read()[-4000:].decode("utf-8", "replace").strip().splitlines()
        message = lines[-1] if lines else "no message"
        return InfrastructureError(f"the sandbox ended with {self.process.returncode}: {message}")


class _Waiting:
    """Idle sandboxes of one thread; a sandbox ends with the thread that started it."""

    def __init__(self) -> None:
        self.drivers: list[Driver] = []
        self.owner = os.getpid()

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """End the idle sandboxes of this process; those that a fork inherited belong to its parent."""
        while self.drivers:
            driver = self.drivers.pop()
            if self.owner == os.getpid():
                driver.close()


_local = threading.local()


def _waiting() -> _Waiting:
    waiting: _Waiting | None = getattr(_local, "waiting", None)
    if waiting is None or waiting.owner != os.getpid():  # a fork inherits those of its parent
        waiting = _local.waiting = _Waiting()
    return waiting


def borrow(kind: Kind, python: Interpreter) -> Driver | None:
    """Take an idle sandbox of this thread that still runs, or None."""
    drivers = _waiting().drivers
    for driver in [d for d in reversed(drivers) if d.key == (kind, python)]:
        drivers.remove(driver)
        if driver.process.poll() is None:
            return driver
        driver.close()
    return None


def give_back(driver: Driver) -> None:
    """Keep a sandbox for the next program, unless it has served 500; above 4 idle ones, close the oldest."""
    drivers = _waiting().drivers
    driver.programs += 1
    drivers.append(driver)
    try:
        driver.send(None)
    except InfrastructureError:
        driver.programs = _MOST_PROGRAMS
    if driver.programs >= _MOST_PROGRAMS:
        drivers.remove(driver)
        driver.close()
    elif len(drivers) > _MOST_WAITING:
        drivers.pop(0).close()


def close_waiting() -> None:
    """End the idle sandboxes of this thread."""
    _waiting().close()


atexit.register(close_waiting)


def _working_directory(layers: Collection[str]) -> str:
    _sweep_once()
    directory = os.path.realpath(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))
    if os.geteuid() == 0 and "uid" in layers:
        os.chown(directory, NOBODY, NOBODY)
    return directory


@functools.cache
def _sweep_once() -> None:
    sweep()


def sweep() -> None:
    """Remove the folders of processes that are gone: killed ones, and workers whose idle sandboxes ended with them."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*-*"):
        owner = folder.name.removeprefix(_PREFIX).partition("-")[0]
        if owner.isdigit() and not alive(int(owner)):
            shutil.rmtree(folder, ignore_errors=True)
