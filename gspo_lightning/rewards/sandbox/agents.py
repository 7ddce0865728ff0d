"""Sandbox of an agent's command: it may run programs and reach the gateway, and nothing else of the machine."""

from __future__ import annotations

import base64
import os
import select
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gspo_lightning.core.errors import InfrastructureError
from gspo_lightning.rewards.sandbox.launch import INSIDE, Interpreter, Kind, program_user
from gspo_lightning.rewards.sandbox.limits import Limits
from gspo_lightning.rewards.sandbox.process import DEVICES, layers_of
from gspo_lightning.rewards.sandbox.warm import Driver

PORT = 8000
"""Port of the gateway in a network namespace, where all ports are free."""
_START_S = 60.0
_STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Ended:
    """End of a command: why it was ended ("" if it ended by itself), wait status, last output, and what it printed."""

    reason: str
    status: int
    stdout: str
    stderr: str
    cut: bool


class AgentSandbox:
    """Sandbox for one run of a command.

    Args:
        kind: the isolation, which must have passed its probe.
        python: the interpreter of the driver.
        paths: files and folders that the command may read and execute.
        limits: of the command and all that it starts.
        socket: socket file of the gateway, for namespaces; "" without a way out.
        port: port of the gateway, without namespaces.

    Raises:
        InfrastructureError: the sandbox does not start.
    """

    def __init__(
        self, kind: Kind, python: Interpreter, paths: Sequence[str], limits: Limits, socket: str = "", port: int = 0
    ) -> None:
        layers = layers_of(kind) - {"memory"}  # of address space, which is no memory: the resident size is watched
        self._namespaces = kind is Kind.BUBBLEWRAP
        self._socket = socket if self._namespaces else ""
        python = replace(python, agent=tuple(paths))
        readable = python.readable
        if self._socket:  # for the forwarder: the command does not see it
            python = replace(python, agent=(*paths, self._socket))
        self._driver = Driver(kind, python, layers)
        self._stop_read, self._stop_write = os.pipe()
        self._open = True
        self._lock = threading.Lock()
        setup: dict[str, Any] = {
            "program": "", "preamble": False, "packages": [], "library": b"", "channel": -1, "role": "agent",
            "namespaces": self._namespaces,
            "layers": sorted(layers),
            "limits": limits.frame(),
            "readable": [*readable, str(INSIDE), *DEVICES],
            "user": program_user(kind, layers) if self._namespaces else None,
            "ports": [port] if kind is Kind.LANDLOCK else [],
            "directory": self._driver.directory,
        }  # fmt: skip
        try:
            self._driver.send(setup)
            self._driver.receive(_START_S)
        except BaseException:
            self.close()
            raise

    @property
    def folder(self) -> str:
        """Folder that the command may write to, as it sees it."""
        directory = self._driver.directory
        return os.path.join(directory, "test1") if directory else "/tmp"

    def run(
        self, command: Sequence[str], env: Mapping[str, str], cwd: str, stdin: str, needs: Sequence[str] = ()
    ) -> Ended:
        """Run the command to its end, or until :meth:`stop`; without a command, check that ``needs`` can be read.

        Raises:
            InfrastructureError: the sandbox failed.
        """
        self._driver.send({
            "run": list(command), "env": dict(env), "cwd": cwd, "input": stdin, "needs": list(needs),
            "socket": self._socket, "port": PORT, "first": self._namespaces,
        })  # fmt: skip
        answers = self._driver.process.stdout
        assert answers is not None
        if self._stop_read in select.select([answers.fileno(), self._stop_read], [], [])[0]:
            return Ended(_STOPPED, 0, "", "", cut=False)
        report = self._driver.receive(_START_S)
        out = base64.b64decode(report["out"]).decode("utf-8", "replace")
        err = base64.b64decode(report["err"]).decode("utf-8", "replace")
        if not report["confined"]:
            raise InfrastructureError(f"a command could not be confined: {err[-300:] or report['status']}")
        return Ended(report["end"], report["status"], out, err, cut=report["full"])

    def stop(self) -> None:
        """Make :meth:`run` return; may be called from another thread, and after the end."""
        with self._lock:
            if self._open:
                os.write(self._stop_write, b"1")

    def close(self) -> None:
        """End the command, all that it started, and the sandbox."""
        self._driver.close()
        with self._lock:
            self._open = False
            os.close(self._stop_read)
            os.close(self._stop_write)
