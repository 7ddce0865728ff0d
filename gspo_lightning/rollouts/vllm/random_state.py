"""Random state of an in-process engine, isolated from all other users of the global generators."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

__all__ = ["RandomState"]


class RandomState:
    """State of the global generators (torch, its current CUDA device, NumPy, Python), installed only while in use.

    Args:
        seed: seed of all of them, below 2^32.
    """

    def __init__(self, seed: int) -> None:
        before = _read()
        torch.manual_seed(seed)
        np.random.seed(seed)
        random.seed(seed)
        self._state = _read()
        _write(before)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Install the state inside the block, continued from its last use, and restore the others' state afterwards."""
        before = _read()
        _write(self._state)
        try:
            yield
        finally:
            self._state = _read()
            _write(before)


def _read() -> tuple[Any, ...]:
    cuda = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None
    return torch.get_rng_state(), cuda, np.random.get_state(), random.getstate()


def _write(state: tuple[Any, ...]) -> None:
    cpu, cuda, array, plain = state
    torch.set_rng_state(cpu)
    if cuda is not None:
        torch.cuda.set_rng_state(cuda)
    np.random.set_state(array)
    random.setstate(plain)
