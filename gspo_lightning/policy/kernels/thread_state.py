"""Thread-local state of PyTorch: the current device, and autocast."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def on_device(device: torch.device) -> Iterator[None]:
    """Make a device this thread's current one.

    A new thread begins with device 0, whatever the rank. PyTorch's operators run on the device of their tensors, but
    events and third-party kernels (Triton's, vLLM's) use the current device.
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
    """Disable autocast, for models with their own precision and for sums of weights."""
    return torch.autocast(device.type, enabled=False)
