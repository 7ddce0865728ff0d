"""Count the bytes of fake tensors, to measure the peak memory of a training step."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

__all__ = ["Tally"]

COPIES = "copies"
"""Label of weights cast to compute precision."""


class Tally(TorchDispatchMode):
    """Dispatch mode that sums the storages operations allocate and free, by the label at allocation.

    Args:
        weights: existing tensors; they and views of them are not counted.
    """

    def __init__(self, weights: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._weights = {w.untyped_storage()._cdata for w in weights}
        self._kept = list(weights)
        self._alive: dict[int, str] = {}
        self.now: dict[str, int] = {}
        """Label -> bytes in use."""
        self.peaks: dict[str, dict[str, int]] = {}
        """Phase -> label -> bytes, at the peak of the phase."""
        self._label, self._phase = "other", ""
        self.enter("forward")

    def enter(self, phase: str) -> None:
        """Start a new phase with its own peak."""
        self._phase = phase
        self.peaks[phase] = dict(self.now)

    @contextmanager
    def label(self, name: str) -> Iterator[None]:
        """Count allocations within the context under this label."""
        before, self._label = self._label, name
        try:
            yield
        finally:
            self._label = before

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, then count new storages."""
        if func is torch.ops.aten._grouped_mm.default:
            out = _grouped(*args)
        else:
            out = func(*args, **(kwargs or {}))
        cast = func is torch.ops.aten._to_copy.default and args[0].untyped_storage()._cdata in self._weights
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor):
                self._count(tensor.untyped_storage(), COPIES if cast else self._label)
        return out

    def _count(self, storage: torch.UntypedStorage, label: str) -> None:
        key = storage._cdata
        if key in self._alive or key in self._weights:
            return
        size = storage.nbytes()
        self._alive[key] = label
        self.now[label] = self.now.get(label, 0) + size
        if sum(self.now.values()) > sum(self.peaks[self._phase].values()):
            self.peaks[self._phase] = dict(self.now)
        weakref.finalize(storage, self._drop, key, size)

    def _drop(self, key: int, size: int) -> None:
        self.now[self._alive.pop(key)] -= size


def _grouped(a: Tensor, b: Tensor, offsets: Tensor | None = None, *_: Any) -> Tensor:
    """Return the output of ``torch._grouped_mm`` by shape only; its own meta rule supports only bfloat16."""
    if a.dim() == 2 and b.dim() == 2:
        assert offsets is not None
        return a.new_empty(offsets.shape[0], a.shape[0], b.shape[1])
    return a.new_empty(*a.shape[:-1], b.shape[-1]) if a.dim() == 2 else a.new_empty(a.shape[1], b.shape[1])
