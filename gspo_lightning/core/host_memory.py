"""Memory of the host that a process has freed and its allocator has kept."""

from __future__ import annotations

import contextlib
import ctypes


def return_freed_memory() -> None:
    """Have glibc return what was freed to the system; without effect with another C library.

    By itself it keeps blocks of a few megabytes, such as a layer's weights, for allocations of much the same size.
    """
    with contextlib.suppress(OSError, AttributeError):  # another libc
        ctypes.CDLL(None).malloc_trim(0)
