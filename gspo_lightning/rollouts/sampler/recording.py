"""Recording of decode steps: CUDA graphs on their tensors' device and in their owner's memory, while nobody trains."""

from __future__ import annotations

import logging
import threading
import weakref
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
SMALL = (1, 2, 4)
EIGHTS = 8


def bucket(rows: int) -> int:
    """Return the rows of the recorded step for so many rows.

    >>> [bucket(n) for n in (1, 2, 3, 5, 8, 9, 17, 511, 512)]
    [1, 2, 4, 8, 8, 16, 24, 512, 512]
    """
    return next((size for size in SMALL if rows <= size), -(-rows // EIGHTS) * EIGHTS)


class GraphMemory:
    """Memory pool and stream of recordings that are replayed one at a time, and that end together.

    Nobody else records on its stream: a graph that ends takes the workspaces of cuBLAS on its stream with it, also from
    graphs that still use them (pytorch/pytorch#193402).
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.pool: Any = None
        self.stream: Any = None
        self.warm: set[int] = set()
        """Threads that have run something on the stream: what libraries allocate for both is allocated outside."""

    def free(self) -> None:
        """Give the memory back to the device, after the recordings; not while something is recorded.

        As long as the pool exists, ``torch.cuda.empty_cache`` keeps its memory.
        """
        if self.pool is not None:
            with ALLOCATING:
                self.pool = None


_UNUSED: list[GraphMemory] = []
"""Memory whose owner is gone, for the next one: a pool that the garbage collector ends during a recording ends the
process, since it empties the cache."""


def memory_for(owner: object, device: torch.device) -> GraphMemory:
    """Return memory for recordings, for as long as their owner lives."""
    memory = next((memory for memory in _UNUSED if memory.device == device), None)
    if memory is None:
        memory = GraphMemory(device)
    else:
        _UNUSED.remove(memory)
    weakref.finalize(owner, _UNUSED.append, memory).atexit = False
    return memory


class Capture(Protocol):
    """A function whose kernels were recorded: a replay reads the same memory and writes the same result."""

    def __init__(self, function: Callable[[], Tensor], memory: GraphMemory) -> None: ...

    @property
    def result(self) -> Tensor:
        """The result of the last replay, which the next one overwrites."""

    def replay(self) -> None:
        """Do all of it again."""


class CudaCapture:
    """A CUDA graph. Those of one memory share it, so no two of them may be replayed at the same time."""

    _abandoned: ClassVar[list[Any]] = []
    """Graphs whose end failed: PyTorch before 2.12 goes on asking them whether they are being recorded."""

    def __init__(self, function: Callable[[], Tensor], memory: GraphMemory) -> None:
        here, thread = torch.cuda.current_stream(memory.device), threading.get_ident()
        memory.stream = memory.stream or torch.cuda.Stream(memory.device)
        memory.stream.wait_stream(here)
        self._graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.stream(memory.stream):
                if thread not in memory.warm:
                    function()
                    memory.warm.add(thread)
                make_room(memory.device)
                memory.pool = memory.pool or torch.cuda.MemPool()
                try:
                    self._graph.capture_begin(pool=memory.pool.id, capture_error_mode="thread_local")
                    self.result = function()
                    self._graph.capture_end()
                except BaseException:
                    self._abandon(memory)
                    raise
        finally:
            here.wait_stream(memory.stream)

    def _abandon(self, memory: GraphMemory) -> None:
        """End a recording that has failed, for PyTorch's allocator, too.

        Before 2.12 ``capture_end`` raises before it tells the allocator (pytorch/pytorch#180395). No cached block would
        reach the device any more, and no other recording would start in the same pool. The pool is replaced, since its
        count of graphs stays too high (pytorch/pytorch#190348).
        """
        with suppress(RuntimeError):  # it says only that the capture has failed
            self._graph.capture_end()
        with suppress(RuntimeError):  # it says that the allocator knows already
            torch._C._cuda_endAllocateToPool(memory.stream.device.index, memory.pool.id)
            self._abandoned.append(self._graph)
        memory.pool = None

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


def record(function: Callable[[], Tensor], memory: GraphMemory) -> Capture:
    """Record a function of tensors on the device of a memory.

    A thread's current device may be another one, whose stream would then record nothing. Nobody trains meanwhile:
    allocations of another thread would fail.
    """
    with ALLOCATING, on_device(memory.device):
        return CAPTURES[memory.device.type](function, memory)
