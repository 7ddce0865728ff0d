"""Watchdog of a server: end it with all its children when the owner process is gone, for whatever reason.

``python watchdog.py FOLDER ... -- COMMAND ...``, with a pipe as standard input whose other end the owner holds. Only
the standard library is imported, which keeps the process small.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

END = "--"
"""Separator between the folders and the command."""
PR_SET_CHILD_SUBREAPER = 36
GRACE_S = 5.0
"""Seconds between SIGTERM and SIGKILL."""


def main(folders: Sequence[str], command: Sequence[str]) -> int:
    """Run the command until it ends, standard input is closed, the owner is gone, or a signal to end arrives.

    The folders are removed if the owner is gone.
    """
    owner = os.getppid()
    # orphans of the server become children of this process, which can then find them
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signals: list[int] = []
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, lambda number, _: signals.append(number))
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    while server.poll() is None and not signals and os.getppid() == owner:
        try:
            readable = select.select([sys.stdin], [], [], 0.2)[0]
        except InterruptedError:
            continue
        if readable and not os.read(sys.stdin.fileno(), 64):
            break
    code = server.poll()
    _end(server)
    if os.getppid() != owner:
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
    return 1 if code is None else code & 0xFF


def _end(server: subprocess.Popen[bytes]) -> None:
    """Send SIGTERM, then SIGKILL, to the server and all its descendants, until none is left."""
    if server.poll() is None:
        os.killpg(server.pid, signal.SIGTERM)
    deadline = time.monotonic() + GRACE_S
    while pids := _descendants(os.getpid()):
        if time.monotonic() > deadline:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
        server.poll()
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _descendants(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):  # the process ended meanwhile
                with open(f"/proc/{entry}/stat") as file:
                    fields = file.read().rpartition(")")[2].split()
                children.setdefault(int(fields[1]), []).append(int(entry))
    pids = []
    stack = [root]
    while stack:
        for pid in children.get(stack.pop(), []):
            pids.append(pid)
            stack.append(pid)
    return pids


if __name__ == "__main__":
    end = sys.argv.index(END)
    sys.exit(main(sys.argv[1:end], sys.argv[end + 1 :]))
