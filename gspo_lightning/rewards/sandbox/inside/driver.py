"""Trusted processes inside: one waits and forks a driver for each program, which forks confined children for tests.

The driver watches the child and reports its result. The waiting process only checks whether there is more to read:
each driver is a fork of it, so its memory holds nothing of an earlier program.

Frames (a length of four bytes, then marshalled data) come in on stdin, and JSON goes out on stdout. The first frame
sets up: ``program``, ``namespaces``, ``user``, ``layers``, ``limits``, ``readable``, ``directory``, ``packages``,
``preamble`` and, for tests that are scripts, ``channel`` (the file descriptor of the other side) and ``role``. Each
further frame is a test with its input; the answer says how the child ended, its output and its return value. The
expected value is in no frame to the driver of a program.

A child runs one test. Tests with ``shares`` run in one child, in order, until one of them ends it: a crash, an exit, a
limit. The next test then gets a new child. All that a child says about a test is its own claim, and it sees a test only
when the one before is over.

A child cannot reach this process. With namespaces, the child is the first process of its own PID namespace, which shows
no other process and takes everything it started with it when it ends. Without namespaces, it may signal no process but
itself and start none.
"""

from __future__ import annotations

import marshal
import os
import select
import sys

from gspo_lightning.rewards.sandbox.inside import seccomp, system
from gspo_lightning.rewards.sandbox.inside.child import Child, write_all

TYPE_CHECKING = False  # importing typing would take longer than all of this
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

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
        from gspo_lightning.rewards.sandbox.inside import agent, landlock

        setup["filter"] = seccomp.agent_filter(namespaces=setup["namespaces"], signals=landlock.abi() >= 6)
        if not setup["namespaces"]:
            agent.adopt()
    elif setup["namespaces"] or compiles:
        setup["filter"] = seccomp.own_filter(alone=False, executes=compiles)  # the same for every test
    own_processes = os.open("/proc/self/ns/pid", os.O_RDONLY) if setup["namespaces"] else -1
    send(out, {"end": "ready"})
    number = 0
    run: Child | None = None
    while (test := receive(0)) is not None:
        if run is None or not test.get("shares"):
            if run is not None:
                run.close()
            number += 1
            run = Child(setup, test, number, own_processes)
        send(out, run.outcome(test))
        if not run.alive:
            run = None
    if run is not None:
        run.close()


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
    write_all(target, len(body).to_bytes(4, "big") + body)


def _read(source: int, count: int) -> bytes | None:
    pieces = bytearray()
    while len(pieces) < count:
        piece = os.read(source, count - len(pieces))
        if not piece:
            return None
        pieces += piece
    return bytes(pieces)


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
    role = setup["role"] or ("native" if setup["library"] else "")
    if role:
        __import__(f"gspo_lightning.rewards.sandbox.inside.{role}")


def _imported(source: str) -> set[str]:
    """Return the modules that a program seems to import, without parsing source that may be hostile."""
    lines = (line.split(None, 2) for line in source.splitlines())
    return {
        words[1].partition(".")[0].rstrip(",") for words in lines if len(words) > 1 and words[0] in ("import", "from")
    }
