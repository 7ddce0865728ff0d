"""Restore process-global state that vLLM changes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from lightning.pytorch.utilities.seed import isolate_rng

__all__ = ["others_groups_kept", "undisturbed"]


@contextmanager
def others_groups_kept() -> Iterator[None]:
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
def undisturbed() -> Iterator[None]:
    """Restore process-global state that an engine changes at its start.

    An engine seeds all random numbers, replaces ``torch.set_num_threads``, and sets variables that child processes
    (reward workers) would inherit, ``LD_PRELOAD`` among them; variables that begin with ``VLLM_`` stay.
    """
    set_threads, threads = torch.set_num_threads, torch.get_num_threads()
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
