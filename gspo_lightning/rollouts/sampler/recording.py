"""Recording of decode steps: CUDA graphs from one memory pool, on the device of their tensors, while nobody trains."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from gspo_lightning.policy.kernels.thread_state import on_device
from gspo_lightning.policy.packing.memory import ALLOCATING

log = logging.getLogger(__name__)

ROOM = 2 << 30
"""Bytes of a device that are free before a recording starts. During one the allocator cannot give cached blocks back to
the device (pytorch/pytorch#159594), so a card that training has left full of them would be out of memory."""


class Capture(Protocol):
    """A function whose kernels were recorded: a replay reads the same memory and writes the same result."""

    def __init__(self, function: Callable[[], Tensor], device: torch.device) -> None: ...

    @property
    def result(self) -> Tensor:
        """The result of the last replay, which the next one overwrites."""

    def replay(self) -> None:
        """Do all of it again."""


class CudaCapture:
    """A CUDA graph. All graphs of a device share a memory pool, so no two may be replayed at the same time."""

    _own = threading.local()
    """Stream of a thread's captures: what libraries allocate for a stream is allocated once, outside of them."""
    _pools: ClassVar[dict[torch.device, Any]] = {}

    def __init__(self, function: Callable[[], Tensor], device: torch.device) -> None:
        here = torch.cuda.current_stream(device)
        streams = vars(self._own).setdefault("streams", {})
        fresh = here.device not in streams
        stream = streams.setdefault(here.device, torch.cuda.Stream(device) if fresh else None)
        stream.wait_stream(here)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(stream):
            if fresh:
                function()
            make_room(device)
            self._graph.capture_begin(pool=self.pool(here.device), capture_error_mode="thread_local")
            try:
                self.result = function()
            except BaseException:
                with suppress(RuntimeError):  # it says only that the capture has failed
                    self._graph.capture_end()
                raise
            self._graph.capture_end()
        here.wait_stream(stream)

    @classmethod
    def pool(cls, device: torch.device) -> Any:
        """Return the memory pool of a device's graphs, which lives as long as the process."""
        if device not in cls._pools:
            cls._pools[device] = torch.cuda.MemPool()
        return cls._pools[device].id

    def replay(self) -> None:
        """Launch all of it again."""
        self._graph.replay()


CAPTURES: dict[str, type[Capture]] = {"cuda": CudaCapture}
"""How steps are recorded, by device type; on other devices they are not."""


def make_room(device: torch.device) -> bool:
    """Give cached blocks back to a device with less than :data:`ROOM` free bytes; True if that was done."""
    if torch.cuda.mem_get_info(device)[0] >= ROOM:
        return False
    torch.cuda.empty_cache()
    return True


def record(function: Callable[[], Tensor], device: torch.device) -> Capture:
    """Record a function of tensors on a device.

    A thread's current device may be another one, whose stream would then record nothing. Nobody trains meanwhile:
    allocations of another thread would fail.
    """
    with ALLOCATING, on_device(device):
        return CAPTURES[device.type](function, device)
