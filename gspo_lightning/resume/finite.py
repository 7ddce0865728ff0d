"""Refuse to save a checkpoint with a NaN or infinity."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributed._shard.sharded_tensor.api import ShardedTensor
from torch.distributed.tensor import DTensor

from gspo_lightning.errors import NonFiniteError

__all__ = ["check_finite"]


def check_finite(checkpoint: Mapping[str, Any]) -> None:
    """Check that weights and optimizer state are finite; if sharded, this rank's part.

    Raises:
        NonFiniteError: a value is not finite.
    """
    for part in ("state_dict", "current_model_state", "optimizer_states"):
        for name, tensor in _tensors(checkpoint.get(part), part):
            if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                raise NonFiniteError(
                    f"{name} is not finite: nothing was saved, older checkpoints are good.\n"
                    f"  fix: lower the learning rate, or clip gradients (trainer.gradient_clip_val), and resume"
                )


def _tensors(value: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, DTensor):
        yield name, value.to_local()
    elif isinstance(value, ShardedTensor):
        yield from ((name, shard.tensor) for shard in value.local_shards())
    elif isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _tensors(item, f"{name}.{key}")
    elif isinstance(value, list | tuple):
        for i, item in enumerate(value):
            yield from _tensors(item, f"{name}.{i}")
