"""Memory of the host that a process has freed: given back to the system, or kept for what is allocated next."""

from __future__ import annotations

import contextlib
import ctypes
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch  # commands that need no tensors import this file, too

LARGEST_KEPT = 1 << 27
"""Bytes of the largest block that is kept: the gradient of a head [49152, 576] has 108 MiB."""
_TRIM_THRESHOLD = -1
"""Number of the setting for ``mallopt``, as the next one."""
_MMAP_THRESHOLD = -3
_ALL = (1 << 31) - 1
_kept = False
"""True from :func:`keep_freed_memory` on."""
_VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_")


def return_freed_memory() -> None:
    """Have glibc return what was freed to the system; without effect with another C library, or if it is to be kept.

    By itself it keeps blocks of a few megabytes, such as a layer's weights, for allocations of much the same size.
    """
    if _kept:
        return
    with contextlib.suppress(OSError, AttributeError):  # another libc
        ctypes.CDLL(None).malloc_trim(0)


def keep_freed_memory(device: torch.device) -> None:
    """Have glibc keep what training on a CPU frees, up to :data:`LARGEST_KEPT` a block, until the process ends.

    By itself it returns large blocks and the end of its heap at once. Every micro-batch allocates the same activations
    and gradients again, and each of their pages then costs a page fault and is filled with zeros. What the user has
    set for glibc stays. Without effect with another C library.

    Args:
        device: of training; on an accelerator nothing is kept.
    """
    global _kept
    chosen = any(name in os.environ for name in _VARIABLES) or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "")
    if device.type != "cpu" or chosen:
        return
    with contextlib.suppress(OSError, AttributeError):  # another libc
        libc = ctypes.CDLL(None)
        _kept = bool(libc.mallopt(_MMAP_THRESHOLD, LARGEST_KEPT) and libc.mallopt(_TRIM_THRESHOLD, _ALL))
