"""A file that this process may not read, also where it is root's."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from pathlib import Path

_VERSION, _DAC_OVERRIDE, _DAC_READ_SEARCH = 0x20080522, 1, 2


@contextlib.contextmanager
def unreadable(path: Path) -> Iterator[None]:
    """Take every right to a file away; from root, in this thread, also the right to pass over that."""
    libc = ctypes.CDLL(None, use_errno=True)
    head, before, less = (ctypes.c_uint32 * 2)(_VERSION, 0), (ctypes.c_uint32 * 6)(), (ctypes.c_uint32 * 6)()
    assert libc.capget(head, before) == 0
    less[:] = before[:]
    less[0] &= ~(1 << _DAC_OVERRIDE | 1 << _DAC_READ_SEARCH)  # of what is effective; what is permitted stays
    mode = path.stat().st_mode
    path.chmod(0)
    assert libc.capset(head, less) == 0
    try:
        yield
    finally:
        assert libc.capset(head, before) == 0
        path.chmod(mode)
