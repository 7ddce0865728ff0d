"""The command of an agent: run it confined, end all that it started, and carry its requests out of the namespace.

A forwarder listens on a port of the sandbox's own 127.0.0.1 and connects each request with a socket file outside. It
is trusted, and the agent can neither see nor signal it.
"""

from __future__ import annotations

import os
import socket
import threading
import time

from gspo_lightning.rewards.sandbox.inside import system

TYPE_CHECKING = False  # importing typing would take longer than all of this
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_SIGKILL = 9
_SIGSTOP = 19
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_CONNECTIONS = 64
_PIECE = 1 << 16


def run(test: Mapping[str, Any]) -> int:
    """Become the command; return an exit code if that is impossible.

    Args:
        test: ``run`` is the command, ``env`` its environment, ``cwd`` its folder. Without a command, the answer is
            whether all paths of ``needs`` can be read: the path that cannot, and what is closed. ``first``: this is
            the first process of a namespace, which signals do not end, so the command gets a process of its own.
    """
    for path in test["needs"]:
        closed = _closed(path)
        if closed:
            os.write(2, f"{path}\0{closed}".encode("utf-8", "surrogateescape"))
            return 126
    if not test["run"]:
        return 0
    if test["first"]:
        main = os.fork()
        if main:
            return _wait_for(main)
    try:
        os.close(3)
        os.chdir(test["cwd"])
        os.execve(test["run"][0], test["run"], test["env"])
    except OSError as error:
        os.write(2, f"{test['run'][0]}: {error}".encode("utf-8", "surrogateescape"))
    return 127


def _closed(path: str) -> str:
    """Return the topmost folder that keeps this process from reading a path, or the path itself; "" if it can read."""
    real = os.path.realpath(path)
    parts = real.split("/")
    for number in range(2, len(parts)):
        folder = "/".join(parts[:number])
        if os.path.isdir(folder) and not os.access(folder, os.X_OK):
            return folder
    readable = os.access(path, os.R_OK | (os.X_OK if os.path.isdir(path) else 0))
    return "" if readable else real


def _wait_for(main: int) -> int:
    """Wait for all processes until the main one has ended, and return its exit code as a shell would."""
    for descriptor in (0, 1, 2, 3):
        os.close(descriptor)
    while True:
        pid, status = os.wait()
        if pid == main:
            return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def adopt() -> None:
    """Make this process the parent of all orphans below it, and let it outlive its own parent to end them."""
    system.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    system.prctl(_PR_SET_PDEATHSIG, 0)


def descendants(root: int) -> list[int]:
    """Return all processes below one that have not ended, whichever of its threads started them."""
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
            except OSError:  # it has ended
                continue
            if fields[0] != b"Z":
                parents[int(name)] = int(fields[1])
    pids = [root]
    for ancestor in pids:  # the list grows meanwhile
        pids += [pid for pid, parent in parents.items() if parent == ancestor]
    return pids[1:]


def end_all(main: int) -> None:
    """End all processes below this one, stopped first so that none starts another; leave ``main`` to be waited for."""
    for _ in range(1000):
        pids = descendants(os.getpid())
        if not pids:
            return
        for signal in (_SIGSTOP, _SIGKILL):
            for pid in pids:
                try:
                    os.kill(pid, signal)
                except OSError:  # it has ended
                    continue
        time.sleep(0.001)
        for pid in pids:
            if pid != main:
                try:
                    os.waitpid(pid, os.WNOHANG)
                except ChildProcessError:  # not yet adopted
                    continue


def forward(path: str, port: int) -> int:
    """Start a process that connects each connection to ``port`` with the socket file, and return its id.

    Raises:
        OSError: the port cannot be had.
    """
    listener = socket.create_server(("127.0.0.1", port), backlog=1024)
    pid = os.fork()
    if pid:
        listener.close()
        return pid
    try:
        kept = listener.fileno()
        os.closerange(0, kept)
        os.closerange(kept + 1, 1 << 16)
        free = threading.Semaphore(_CONNECTIONS)
        while True:
            free.acquire()
            threading.Thread(target=_carry, args=(listener.accept()[0], path, free), daemon=True).start()
    finally:
        os._exit(1)


def _carry(inner: socket.socket, path: str, free: threading.Semaphore) -> None:
    outer = socket.socket(socket.AF_UNIX)
    try:
        outer.connect(path)
        back = threading.Thread(target=_pump, args=(outer, inner), daemon=True)
        back.start()
        _pump(inner, outer)
        back.join()
    except OSError:  # the gateway has closed: the agent sees the end of its connection
        pass
    finally:
        inner.close()
        outer.close()
        free.release()


def _pump(source: socket.socket, target: socket.socket) -> None:
    try:
        while piece := source.recv(_PIECE):
            target.sendall(piece)
        target.shutdown(socket.SHUT_WR)
    except OSError:  # one side is gone: end the other direction, too
        for side in (source, target):
            try:
                side.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue
