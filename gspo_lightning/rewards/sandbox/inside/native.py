"""Run a compiled program in a test's process: load its library and call its ``main``; nothing is executed.

The process is confined before a byte of the library is read. Code that runs at load time (constructors of global
objects, or hostile code in their place) is therefore confined like ``main``.
"""

from __future__ import annotations

import ctypes
import os
import signal

from gspo_lightning.rewards.sandbox.inside.program import REPORT, failure

_NAME = "./program.so"


def run(library: bytes) -> int:
    """Run the program to its end, which ends this process; return an exit code only if the program never began."""
    os.environ.clear()
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):  # as in a process of its own
        signal.signal(number, signal.SIG_DFL)
    with open(_NAME, "xb") as file:
        file.write(library)
    try:
        loaded = ctypes.CDLL(_NAME)
        main = loaded.main
    except OSError as error:  # mostly global arrays beyond the memory limit
        return _failed("MemoryError", error)
    except AttributeError as error:
        return _failed("SyntaxError", error)
    os.unlink(_NAME)
    words = (ctypes.c_char_p * 2)(b"program", None)
    nothing = (ctypes.c_char_p * 1)(None)
    ctypes.CDLL(None).exit(main(1, words, nothing))
    return 0


def _failed(name: str, error: Exception) -> int:
    os.write(REPORT, failure(name, error).encode("ascii"))
    return 1
