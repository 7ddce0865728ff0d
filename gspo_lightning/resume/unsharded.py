"""Whole weights of a checkpoint whose shards several ranks have written, in one process."""

from __future__ import annotations

import os
import tempfile
import warnings
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load

from gspo_lightning.resume.folders import METADATA
from gspo_lightning.resume.reading import check_shards, read_tensors


def unsharded(checkpoint: Path, field: str, prefix: str = "", on_disk: Path | None = None) -> dict[str, Tensor]:
    """Load the weights from a folder of shards, unsharded, in one process.

    Args:
        checkpoint: the folder of shards.
        field: the folder's name in messages.
        prefix: of the names that are loaded.
        on_disk: folder for a file for each tensor, which is mapped and not kept in memory; None allocates memory.

    Raises:
        UserError: the folder cannot be read without running code, or it is incomplete.
    """
    index = dict(check_shards(checkpoint, field).state_dict_metadata)
    part = next(name for name in ("state_dict", "model") if any(key.startswith(f"{name}.{prefix}") for key in index))
    state: dict[str, Tensor] = {}
    for name, value in index.items():
        if isinstance(value, TensorStorageMetadata) and name.startswith(f"{part}.{prefix}"):
            size = value.size
            dtype = value.properties.dtype
            empty = torch.empty(size, dtype=dtype) if on_disk is None else mapped(on_disk, size, dtype)
            state[name.removeprefix(f"{part}.")] = empty
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # as it was asked to be
        load({part: state}, checkpoint_id=checkpoint, no_dist=True)
    return state


def whole_checkpoint(checkpoint: Path, field: str) -> dict[str, object]:
    """Return the content of a folder of shards as that of one file, without the state of optimizers.

    Raises:
        UserError: see :func:`unsharded`.
    """
    return {**read_tensors(checkpoint / METADATA, field), "state_dict": unsharded(checkpoint, field)}


def mapped(folder: Path, size: torch.Size, dtype: torch.dtype) -> Tensor:
    """Return a tensor whose memory is a new file of the folder."""
    descriptor, file = tempfile.mkstemp(dir=folder)
    os.close(descriptor)
    return torch.from_file(file, shared=True, size=size.numel(), dtype=dtype).view(size)
