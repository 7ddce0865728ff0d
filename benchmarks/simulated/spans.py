"""FlashAttention-2 and compiled pieces on the simulated device: computed by their definitions, one kernel a call."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from benchmarks.simulated.device import COUNTS, NAME
from gspo_lightning.policy.attention.spans import Span, attend_by_definition
from gspo_lightning.rollouts.sampler import device_decoder, recording
from gspo_lightning.rollouts.sampler.fast_decoder import Pieces
from gspo_lightning.rollouts.sampler.fast_decoder.pieces import turned_apart
from gspo_lightning.rollouts.sampler.recording import GraphMemory

__all__ = ["SimulatedGraph", "simulated_graphs", "simulated_spans"]


def _flash(qkv: Tensor, store: Tensor, span: Span, queries: Tensor, scaling: float) -> tuple[Tensor, Tensor]:
    """One kernel: see :func:`gspo_lightning.policy.attention.spans.attend_by_flash`."""
    return _one_kernel("flash", attend_by_definition)(qkv, store, span, queries, scaling)


def _one_kernel(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def run(*arguments: Any) -> Any:
        with COUNTS.pause():
            out = function(*arguments)
        COUNTS.launch(name)
        return out

    return run


def _as_if_compiled() -> Pieces:
    """Every piece is a kernel, which :func:`benchmarks.simulated.pieces.kernels_of_pieces` counts."""
    plain = Pieces()
    made = {name: _one_kernel(name, getattr(plain, name)) for name in ("normed", "added", "gated", "joined")}
    return Pieces(**made, turned=_one_kernel("turned", turned_apart), compiled=True)


class SimulatedGraph:
    """A recorded step, which is one launch. As on CUDA, it must be made with the device of its tensors as current."""

    def __init__(self, function: Callable[[], Tensor], memory: GraphMemory) -> None:
        device = memory.device
        if (here := torch.get_device_module(device).current_device()) != device.index:
            raise RuntimeError(f"{device} is recorded while {NAME}:{here} is current")
        self._function = function
        with COUNTS.pause():
            self.result = function()

    def replay(self) -> None:
        """Compute it again; a wait of the host in the middle counts, kernels do not."""
        before = COUNTS.launches.copy()
        self.result = self._function()
        COUNTS.launches.clear()
        COUNTS.launches.update(before)
        COUNTS.launch("graph")


@contextlib.contextmanager
def simulated_graphs() -> Iterator[None]:
    """The simulated device records steps."""
    with mock.patch.dict(recording.CAPTURES, {NAME: SimulatedGraph}):
        yield


@contextlib.contextmanager
def simulated_spans(*, compiled: bool = True) -> Iterator[None]:
    """The simulated device decodes as CUDA does."""

    def can_compile(device: torch.device) -> bool:
        return compiled and device.type == NAME

    with (
        mock.patch.dict(device_decoder.ATTENDS, {NAME: (_flash, lambda *_: None)}),
        mock.patch.object(device_decoder, "can_compile", can_compile),
        mock.patch.object(device_decoder, "compiled_pieces", _as_if_compiled),
    ):
        yield
