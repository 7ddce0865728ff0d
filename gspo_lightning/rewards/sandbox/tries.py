"""The probing program: everything it tries must fail. It runs inside, so it imports nothing of the package."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable


def tries(folder: str, outside: int) -> dict[str, tuple[bool, str]]:
    """Return for each try its name, whether it was prevented, and how.

    Args:
        folder: a folder of the process outside, with a file ``secret`` that everybody may read and write.
        outside: the id of that process.
    """
    return {
        "reads": _prevented(lambda: open(f"{folder}/secret").read()),
        "lists": _prevented(lambda: os.listdir(folder)),
        "writes": _prevented(lambda: open(f"{folder}/secret", "w").write("x")),
        "makes": _prevented(lambda: open(f"{folder}/made", "x").close()),
        "network TCP": _prevented(lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM)),
        "network UDP": _prevented(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)),
        "network local": _prevented(lambda: socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)),
        "signals": _prevented(lambda: os.kill(outside, signal.SIG_DFL)) if outside != os.getpid() else (True, "unseen"),
        "environment": (set(os.environ) <= {"LC_CTYPE"}, ", ".join(os.environ)),
        "user": (os.getuid() != 0 and os.geteuid() != 0, f"user {os.getuid()}"),
        "becoming root": _prevented(lambda: os.setuid(0)),
        "programs": _prevented(lambda: os.execv("/proc/self/exe", ["python", "-c", ""])),
    }


def hog(megabytes: int) -> int:
    """Allocate memory."""
    return len(bytearray(megabytes << 20))


def _prevented(attempt: Callable[[], object]) -> tuple[bool, str]:
    try:
        attempt()
    except OSError as error:
        return True, f"{type(error).__name__}: {error.strerror}"
    return False, "it worked"
