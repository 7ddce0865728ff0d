"""Save checkpoints that are folders of shards, with files of every rank, atomically and only if finite."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed._shard.sharded_tensor.api import ShardedTensor
from torch.distributed.checkpoint import state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.tensor import DTensor

from gspo_lightning.core.distributed import all_gather_objects, fail_together, group, rank_and_world
from gspo_lightning.core.errors import InfrastructureError, NonFiniteError
from gspo_lightning.core.faults import folder_gone, missing_folder
from gspo_lightning.core.temp_files import remove, temp_path
from gspo_lightning.resume.files import replace_folder, swapping, sync_folder, synced, uninterrupted
from gspo_lightning.resume.manifest import Manifest, next_serial

METADATA = "meta.pt"
"""File of a folder with all but weights and optimizer state (Lightning's name)."""


def is_folder(checkpoint: Path) -> bool:
    """True for a checkpoint of shards."""
    return (checkpoint / METADATA).is_file()


def save_folder(
    target: Path, checkpoint: dict[str, Any], write: Callable[[Path], None], options: Mapping[str, Any]
) -> None:
    """Save on every rank; a kill at any moment leaves the previous checkpoint.

    Args:
        target: the folder, on storage that all ranks share.
        checkpoint: finite tensors and primitives; sharded tensors give this rank's part.
        write: writes this rank's files to a folder (a collective).
        options: with ``score`` and ``ranks`` for the manifest.

    Raises:
        InfrastructureError: a file cannot be written.
    """
    rank, _ = rank_and_world()
    step = int(checkpoint.get("global_step", 0))
    unfinished: Path = all_gather_objects(temp_path(target))[0]
    with fail_together(), _os_errors_named(target):
        if rank == 0:
            remove(unfinished)
    with fail_together(), _os_errors_named(target):
        write(unfinished)
        of_rank = {f"{target.name}/{f.name}": synced(f) for f in unfinished.iterdir() if _writer(f.name) == rank}
    of_all_ranks = all_gather_objects(of_rank)
    with fail_together(), _os_errors_named(target):
        if rank == 0:
            sync_folder(unfinished)
            with swapping(target.parent), uninterrupted():
                replace_folder(unfinished, target)
                files = {name: entry for of_rank in of_all_ranks for name, entry in of_rank.items()}
                serial = next_serial(target.parent)
                Manifest(files, step, serial, options.get("score"), options.get("ranks")).write(target)


def write_shards(checkpoint: dict[str, Any], folder: Path, *, weights: str) -> None:
    """Write this rank's files of a checkpoint, in the layout that Lightning reads; a collective.

    Args:
        checkpoint: tensors and primitives; sharded tensors give this rank's part.
        folder: is made, in a folder that exists.
        weights: name of the weights among the shards.
    """
    rest = dict(checkpoint)
    shards = {weights: rest.pop("state_dict")}
    shards |= {f"optimizer_{i}": state for i, state in enumerate(rest.pop("optimizer_states", []))}
    folder.mkdir(exist_ok=True)
    state_dict_saver.save(shards, checkpoint_id=folder, process_group=group())
    if rank_and_world()[0] == 0:
        torch.save(rest, folder / METADATA)


def unwritable(target: Path, error: OSError) -> InfrastructureError:
    """Return the error for a full disk, a read-only folder, a folder that is gone ..."""
    missing = missing_folder(target.absolute()) if error.errno == errno.ENOENT else None
    if missing is not None:
        return folder_gone(missing)
    return InfrastructureError(
        f"the checkpoint {target} cannot be written: {error.strerror or error}; older ones are untouched.\n"
        f"  fix: make room (or the folder writable), then resume with --ckpt_path last"
    )


@contextlib.contextmanager
def _os_errors_named(target: Path) -> Iterator[None]:
    """Turn an operating system's error into one message, also if another rank met it."""
    try:
        yield
    except OSError as error:
        raise unwritable(target, error) from error
    except CheckpointException as failed:
        for cause, _ in failed.failures.values():  # torch catches every exception
            if not isinstance(cause, Exception):
                raise cause from None
            if isinstance(cause, OSError):
                raise unwritable(target, cause) from failed
        raise


def _writer(name: str) -> int:
    """Return the rank that wrote a file: ``__1_0.distcp`` is rank 1's; all other files are rank 0's."""
    parts = name.split("_")
    return int(parts[2]) if name.startswith("__") and parts[2].isdigit() else 0


def check_finite(checkpoint: Mapping[str, Any]) -> None:
    """Check that weights and optimizer state are finite; if sharded, this rank's part.

    Raises:
        NonFiniteError: a value is not finite.
    """
    for part in ("state_dict", "current_model_state", "optimizer_states"):
        for name, tensor in _tensors(checkpoint.get(part), part):
            if tensor.is_floating_point() and not _all_finite(tensor):
                raise NonFiniteError(
                    f"{name} is not finite: nothing was saved, older checkpoints are good.\n"
                    f"  fix: lower the learning rate, or clip gradients (trainer.gradient_clip_val), and resume"
                )


def _all_finite(tensor: Tensor) -> bool:
    """True if every number is finite. So is their sum, unless it overflows: one pass instead of five."""
    return bool(tensor.sum().isfinite()) or bool(torch.isfinite(tensor).all())


def _tensors(value: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, DTensor):
        yield name, value.to_local()
    elif isinstance(value, ShardedTensor):
        for shard in value.local_shards():
            yield name, shard.tensor
    elif isinstance(value, Tensor):
        flatten = getattr(value, "__tensor_flatten__", None)  # of 8-bit states of torchao, for example
        if flatten is None:
            yield name, value
            return
        for part in flatten()[0]:
            yield from _tensors(getattr(value, part), f"{name}.{part}")
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _tensors(item, f"{name}.{key}")
    elif isinstance(value, list | tuple):
        for i, item in enumerate(value):
            yield from _tensors(item, f"{name}.{i}")
