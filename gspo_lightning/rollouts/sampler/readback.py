"""Delayed device-to-host counts: the host reads a number some steps later and never waits for the newest step.

A host that asks a GPU after every token whether a row has ended waits until that token is computed, and the GPU
idles until the next one is launched. The answer may be a few tokens old: a finished row is dropped that much later, and
what it computes until then is never read.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

import torch
from torch import Tensor

__all__ = ["CARRIERS", "LAG", "Readback"]

LAG = 2
"""Steps between a count and its arrival. The same in every run: rows leave a batch at the same tokens."""


class Carrier(Protocol):
    """Scalar in transfer to the host."""

    def __init__(self, value: Tensor) -> None: ...

    def read(self) -> int:
        """Return the value at the start of the transfer."""


class _Pinned:
    """Asynchronous copy into pinned memory; a read waits for earlier work only."""

    def __init__(self, value: Tensor) -> None:
        self._host = torch.empty(value.shape, dtype=value.dtype, pin_memory=True)
        self._host.copy_(value, non_blocking=True)
        self._arrived = torch.cuda.Event()
        self._arrived.record(torch.cuda.current_stream(value.device))  # the stream of the copy, on any current device

    def read(self) -> int:
        self._arrived.synchronize()
        return int(self._host)


CARRIERS: dict[str, type[Carrier]] = {"cuda": _Pinned}
"""Carriers by device type; on other devices, such as a CPU, a number is read at once."""


class Readback:
    """Number of living rows, step by step.

    Args:
        device: device of the rows.
    """

    def __init__(self, device: torch.device) -> None:
        self._carrier = CARRIERS.get(device.type)
        self._waiting: deque[Carrier] = deque()

    @property
    def late(self) -> bool:
        """True if counts arrive late."""
        return self._carrier is not None

    def count(self, alive: Tensor) -> int | None:
        """Count a bool [rows] tensor, now or :data:`LAG` calls ago; None if there were fewer calls."""
        if self._carrier is None:
            return int(alive.sum())
        self._waiting.append(self._carrier(alive.sum()))
        return self._waiting.popleft().read() if len(self._waiting) > LAG else None

    def forget(self) -> None:
        """Drop pending counts, because the rows have changed."""
        self._waiting.clear()
