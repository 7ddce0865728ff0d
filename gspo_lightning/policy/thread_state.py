"""What PyTorch keeps for each thread: the current device, and autocast."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

__all__ = ["on_device", "without_autocast"]


@contextmanager
def on_device(device: torch.device) -> Iterator[None]:
    """Make a device this thread's current one.

    A new thread begins with device 0, whatever the rank. PyTorch's operators run where their tensors are, but events,
    and kernels of others (Triton's, vLLM's), on the current device.
    """
    module: Any = getattr(torch, device.type, None)
    if device.index is None or not hasattr(module, "set_device"):  # a CPU
        yield
        return
    before = module.current_device()
    module.set_device(device.index)
    try:
        yield
    finally:
        module.set_device(before)


def without_autocast(device: torch.device) -> torch.autocast:
    """Leave autocast: for models that have their own precision, and for sums of weights."""
    return torch.autocast(device.type, enabled=False)
