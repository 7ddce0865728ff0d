"""A number that a device has counted, read by the host some steps later: so the host never waits for the newest step.

A host that asks a GPU after every token whether a row has ended stands still until that token is computed, and the GPU
stands still until the next one is launched. What it needs to know may as well be a few tokens old: a row that has ended
is dropped that much later, and what it computes until then is never read.
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
    """A scalar on its way to the host."""

    def __init__(self, value: Tensor) -> None: ...

    def read(self) -> int:
        """What it was when it set out."""


class _Pinned:
    """By an asynchronous copy into pinned memory; read when the work before it is done, whatever came after it."""

    def __init__(self, value: Tensor) -> None:
        self._host = torch.empty(value.shape, dtype=value.dtype, pin_memory=True)
        self._host.copy_(value, non_blocking=True)
        self._arrived = torch.cuda.Event()
        self._arrived.record(torch.cuda.current_stream(value.device))  # the copy's, on whatever device this thread is

    def read(self) -> int:
        self._arrived.synchronize()
        return int(self._host)


CARRIERS: dict[str, type[Carrier]] = {"cuda": _Pinned}
"""By the type of a device; on others, a CPU above all, a number is read at once."""


class Readback:
    """How many rows live, step by step.

    Args:
        device: of the rows.
    """

    def __init__(self, device: torch.device) -> None:
        self._carrier = CARRIERS.get(device.type)
        self._waiting: deque[Carrier] = deque()

    @property
    def late(self) -> bool:
        """Whether numbers are old when they arrive."""
        return self._carrier is not None

    def count(self, alive: Tensor) -> int | None:
        """Of bool [rows] the number that is set, now or :data:`LAG` calls ago; None where there were fewer calls."""
        if self._carrier is None:
            return int(alive.sum())
        self._waiting.append(self._carrier(alive.sum()))
        return self._waiting.popleft().read() if len(self._waiting) > LAG else None

    def forget(self) -> None:
        """Other rows are asked about from now on."""
        self._waiting.clear()
