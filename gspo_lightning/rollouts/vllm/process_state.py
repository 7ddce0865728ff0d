"""Restore process-global state that vLLM changes, and isolate its random state."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from lightning.pytorch.utilities.seed import isolate_rng


@contextmanager
def keep_process_groups() -> Iterator[None]:
    """Keep other process groups alive while an engine shuts down, which would destroy all of them."""
    destroy = torch.distributed.destroy_process_group

    def own(group: Any = None) -> None:
        if group is not None:
            destroy(group)

    torch.distributed.destroy_process_group = own
    try:
        yield
    finally:
        torch.distributed.destroy_process_group = destroy


@contextmanager
def preserve_process_state() -> Iterator[None]:
    """Restore process-global state that an engine changes at its start.

    An engine seeds all random numbers, replaces ``torch.set_num_threads``, and sets variables that child processes
    (reward workers) would inherit, ``LD_PRELOAD`` among them; variables that begin with ``VLLM_`` stay.
    """
    set_threads = torch.set_num_threads
    threads = torch.get_num_threads()
    environment = dict(os.environ)
    with isolate_rng():
        try:
            yield
        finally:
            torch.set_num_threads = set_threads
            torch.set_num_threads(threads)
            for name in [n for n in os.environ if not n.startswith("VLLM_")]:
                if name not in environment:
                    del os.environ[name]
                elif os.environ[name] != environment[name]:
                    os.environ[name] = environment[name]


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
