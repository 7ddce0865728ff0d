"""Compile a C++ program in a confined process, like that of a test: the source may be hostile.

The result is a shared library instead of an executable, so a test needs no system call to execute it.
"""

from __future__ import annotations

import os

from gspo_lightning.rewards.sandbox.inside.program import REPORT

TYPE_CHECKING = False  # importing typing would take longer than all of this
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_PIECE = 1 << 20


def run(test: Mapping[str, Any], source: str) -> int:
    """Compile, return the library as the report, and return an exit code: 0 unless the compiler failed.

    Args:
        test: ``compile`` is the command, which reads ``program.cpp`` and writes ``program.so``; ``env`` is its
            environment.
        source: the program.
    """
    with open("program.cpp", "w", encoding="utf-8", errors="surrogatepass") as file:
        file.write(source)
    pid = os.fork()
    if pid == 0:
        try:
            os.close(REPORT)
            os.dup2(2, 1)
            os.execve(test["compile"][0], test["compile"], test["env"])
        finally:
            os._exit(127)
    _, status = os.waitpid(pid, 0)
    if status != 0:
        return 1
    with open("program.so", "rb") as library:
        while piece := library.read(_PIECE):
            os.write(REPORT, piece)
    return 0
