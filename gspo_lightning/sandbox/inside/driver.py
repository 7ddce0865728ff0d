"""Trusted processes inside: one waits, forks a driver for each program, and the driver forks a confined child per test.

The driver watches the child and reports its result. The waiting process only checks whether there is more to read:
each driver is a fork of it, so its memory holds nothing of an earlier program.

Frames (a length of four bytes, then marshalled data) come in on stdin, and JSON goes out on stdout. The first frame
sets up: ``program``, ``namespaces``, ``user``, ``layers``, ``limits``, ``readable``, ``directory``, ``packages``,
``preamble`` and, for tests that are scripts, ``channel`` (the file descriptor of the other side) and ``role``. Each
further frame is a test with its input; the answer says how the child ended, its output and its return value. The
expected value is in no frame to the driver of a program.

A child cannot reach this process. With namespaces, the child is the first process of its own PID namespace, which shows
no other process and takes everything it started with it when it ends. Without namespaces, it may signal no process but
itself and start none.
"""

from __future__ import annotations

import binascii
import marshal
import os
import select
import sys
import time

from gspo_lightning.sandbox.inside import program, seccomp, system
from gspo_lightning.sandbox.inside.confine import confine
from gspo_lightning.sandbox.inside.disk import empty, overfull
from gspo_lightning.sandbox.inside.usage import family, others, used

TYPE_CHECKING = False  # importing typing would take longer than all of this
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_TICK_MS = 20
_AGENT_TICK_MS = 100
"""Milliseconds between two looks at an agent, which runs for minutes beside many others."""
_SIGKILL = 9
_PR_SET_PDEATHSIG = 1
_WORTH_SHARING = frozenset(
    (
        "bisect", "collections", "copy", "datetime", "decimal", "fractions", "functools", "heapq", "io", "itertools",
        "json", "math", "operator", "queue", "random", "re", "statistics", "string", "threading", "typing",
    )
)  # fmt: skip
"""Modules of the standard library that are imported once for all tests of a program that names them."""
_SLOW = frozenset(("decimal", "fractions", "queue", "statistics", "threading"))
_ERRORS_SHOWN = 2000


def main(parent: int) -> None:
    """Serve until stdin ends.

    Args:
        parent: the process to end with; 0 if bubblewrap takes care of that.
    """
    if parent:
        system.prctl(_PR_SET_PDEATHSIG, _SIGKILL)
        if os.getppid() != parent:
            return
    out = os.dup(1)
    os.dup2(2, 1)
    first = os.getpid()
    while _more(0):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                if parent:
                    system.prctl(_PR_SET_PDEATHSIG, _SIGKILL)
                if os.getppid() == first:
                    _serve(out)
                    code = 0
            except BaseException as error:
                os.write(2, f"{type(error).__name__}: {error}\n".encode("utf-8", "replace"))
            finally:
                os._exit(code)
        if os.waitpid(pid, 0)[1] != 0:
            os._exit(1)


def _more(source: int) -> bool:
    """Wait for the next program without reading from it: every program could find what this process knows."""
    poll = select.poll()
    poll.register(source, select.POLLIN)
    return bool(poll.poll()[0][1] & select.POLLIN)


def _serve(out: int) -> None:
    """Run the tests of one program until an empty frame."""
    setup = receive(0)
    if setup is None:
        return
    _import_shared(setup)
    compiles = setup["role"] == "compiler"
    if setup["role"] == "agent":
        from gspo_lightning.sandbox.inside import agent, landlock

        setup["filter"] = seccomp.agent_filter(namespaces=setup["namespaces"], signals=landlock.abi() >= 6)
        if not setup["namespaces"]:
            agent.adopt()
    elif setup["namespaces"] or compiles:
        setup["filter"] = seccomp.own_filter(alone=False, executes=compiles)  # the same for every test
    own_processes = os.open("/proc/self/ns/pid", os.O_RDONLY) if setup["namespaces"] else -1
    send(out, {"end": "ready"})
    number = 0
    while (test := receive(0)) is not None:
        number += 1
        send(out, _Run(setup, test, number, own_processes).outcome())


class _Run:
    """A test and its confined child process."""

    def __init__(self, setup: Mapping[str, Any], test: dict[str, Any], number: int, own_processes: int) -> None:
        self.setup, self.test, self.limits = setup, test, setup["limits"]
        self.own_processes, self.compiles = own_processes, setup["role"] == "compiler"
        self.agent = setup["role"] == "agent"
        self.known = [1, os.getpid()]
        self.directory = "/tmp" if setup["namespaces"] else os.path.join(setup["directory"], f"test{number}")
        self.files = [os.memfd_create(name, os.MFD_CLOEXEC) for name in ("stdin", "stdout", "stderr", "report")]
        self.started_read, self.started_write = os.pipe()
        self.cpu, self.looks, self.awake = 0.0, 0, 0

    def outcome(self) -> dict[str, Any]:
        """Run the test, return its report, and remove everything it left."""
        _write_all(self.files[0], self.test.pop("input", "").encode("utf-8", "surrogateescape"))
        os.lseek(self.files[0], 0, os.SEEK_SET)
        if not self.setup["namespaces"]:
            os.mkdir(self.directory, 0o700)
        if self.agent and self.test["socket"]:
            from gspo_lightning.sandbox.inside import agent

            self.known.append(agent.forward(self.test["socket"], self.test["port"]))
        pid = self._fork()
        os.close(self.started_write)
        end = self._watch(pid)
        _, status, usage = os.wait4(pid, 0)
        confined = os.read(self.started_read, 1) == b"1"
        os.close(self.started_read)
        if not self.setup["namespaces"]:
            empty(self.directory)
        cpu = max(self.cpu, usage.ru_utime + usage.ru_stime)  # rusage lacks children that the process did not wait for
        if end == "" and cpu > self.limits["cpu_s"]:
            end = "overran"
        room = self.limits["file_mb"] << 20
        found: dict[str, Any] = {"end": end, "status": status, "cpu": cpu, "confined": confined}
        for name, file, most in zip(("out", "err", "report"), self.files[1:], (room, _ERRORS_SHOWN, room), strict=True):
            start = max(0, os.fstat(file).st_size - most) if self.agent else 0  # its last words say why it failed
            found[name] = binascii.b2a_base64(os.pread(file, most, start), newline=False).decode("ascii")
        found["full"] = any(os.fstat(file).st_size >= room for file in self.files[1:])
        for file in self.files:
            os.close(file)
        return found

    def _fork(self) -> int:
        if self.own_processes >= 0 and "processes" in self.setup["layers"]:
            system.unshare(system.CLONE_NEWPID)
        pid = os.fork()
        if pid == 0:
            code = 125
            try:
                code = self._child()
            finally:
                os._exit(code)
        if self.own_processes >= 0 and "processes" in self.setup["layers"]:
            system.call("setns", self.own_processes, system.CLONE_NEWPID)
        return pid

    def _child(self) -> int:
        kept = 5
        if self.setup["channel"] >= 0:  # first: its number from outside may be one of those below
            os.dup2(self.setup["channel"], 105)
            kept = 6
        for target, file in enumerate(self.files):
            os.dup2(file, target + 100)
        os.dup2(self.started_write, 104)
        for target in range(kept):
            os.dup2(target + 100, target)
        os.closerange(kept, 1 << 16)
        try:
            confine(self.setup, self.directory)
        except BaseException as error:
            os.write(2, f"{type(error).__name__}: {error}".encode())
            return 125
        os.write(4, b"1")
        os.close(4)
        if self.agent:
            from gspo_lightning.sandbox.inside import agent

            return agent.run(self.test)
        if self.compiles:
            from gspo_lightning.sandbox.inside import compiler

            return compiler.run(self.test, self.setup["program"])
        if self.setup["library"]:
            from gspo_lightning.sandbox.inside import native

            return native.run(self.setup["library"])
        return program.run(self.test, self.setup["program"])

    def _watch(self, pid: int) -> str:
        """Wait for the child, kill it if it must end, and return the reason or ""."""
        ended = os.pidfd_open(pid)
        poll = select.poll()
        poll.register(ended, select.POLLIN)
        begun = time.monotonic()
        reason = ""
        if self.agent:
            poll.register(0, select.POLLIN)  # nothing is to come but the end, also that of the process outside
        while not (events := poll.poll(_AGENT_TICK_MS if self.agent else _TICK_MS)) or events[0][0] == 0:
            reason = "stopped" if events else self._too_much(pid, time.monotonic() - begun)
            if reason:
                kill = os.killpg if self.compiles and not self.setup["namespaces"] else os.kill
                kill(pid, _SIGKILL)
                break
        os.close(ended)
        if self.agent and not self.setup["namespaces"]:
            from gspo_lightning.sandbox.inside import agent

            agent.end_all(pid)
        return reason

    def _too_much(self, pid: int, wall: float) -> str:
        """Return why a child must end now, or "".

        A child is asleep if at half of the samples it neither used a CPU nor waited for one. A child that a busy
        machine
        starves gets more time, and in the end nobody is at fault.
        """
        limits, layers = self.limits, self.setup["layers"]
        seen = used(self._processes(pid))
        self.cpu = seen.cpu
        self.looks += 1
        self.awake += seen.awake
        if seen.cpu > limits["cpu_s"] and "watch" in layers:
            return "timeout"
        if self.agent and seen.processes > limits["tasks"]:
            return "processes"
        if (seen.processes > 1 or self.agent) and seen.resident_mb > limits["memory_mb"] and "watch" in layers:
            return "memory"
        if not self.setup["namespaces"] and "disk" in layers and overfull(self.directory, pid, limits):
            return "disk"
        if wall > limits["wall_s"] and not self.agent:
            if self.awake < self.looks / 2:
                return "asleep"
            if wall > limits["patience_s"]:
                return "starved"
        return ""

    def _processes(self, pid: int) -> list[int]:
        """Return the processes of the test."""
        if self.setup["namespaces"]:
            return others(*self.known)
        if self.agent:
            from gspo_lightning.sandbox.inside import agent

            return agent.descendants(os.getpid())
        return family(pid) if self.compiles else [pid]


def receive(source: int) -> dict[str, Any] | None:
    """Return the next frame, or None for an empty frame and at the end."""
    body = _read(source, int.from_bytes(_read(source, 4) or b"", "big"))
    return marshal.loads(body) if body else None


def send(target: int, message: Mapping[str, Any]) -> None:
    """Write a frame: JSON of plain text, numbers and truth values, by hand because json takes long to import."""
    pairs = []
    for key, value in message.items():
        written = f'"{value}"' if isinstance(value, str) else str(value).lower()
        pairs.append(f'"{key}": {written}')
    body = ("{" + ", ".join(pairs) + "}").encode("ascii")
    _write_all(target, len(body).to_bytes(4, "big") + body)


def _read(source: int, count: int) -> bytes | None:
    pieces = bytearray()
    while len(pieces) < count:
        piece = os.read(source, count - len(pieces))
        if not piece:
            return None
        pieces += piece
    return bytes(pieces)


def _write_all(target: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(target, view) :]


def _import_shared(setup: Mapping[str, Any]) -> None:
    """Import once the modules that every test of this program would import again."""
    names = _imported(setup["program"])
    if setup["preamble"]:
        names |= _WORTH_SHARING  # the preamble asks for them in every test
    elif "class Solution" in setup["program"]:
        names |= _WORTH_SHARING - _SLOW
    folders = dict(setup["packages"])
    sys.path += dict.fromkeys(folders.values())
    if names & folders.keys():
        os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"  # threads do not survive a fork
    for name in sorted(names & (_WORTH_SHARING | folders.keys())):
        __import__(name)
    own = setup["role"] or ("native" if setup["library"] else "")
    if own:
        __import__(f"gspo_lightning.sandbox.inside.{own}")


def _imported(source: str) -> set[str]:
    """Return the modules that a program seems to import, without parsing source that may be hostile."""
    lines = (line.split(None, 2) for line in source.splitlines())
    return {
        words[1].partition(".")[0].rstrip(",") for words in lines if len(words) > 1 and words[0] in ("import", "from")
    }
