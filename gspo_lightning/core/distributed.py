"""Collectives for the training loop; each is the identity in a single process."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from gspo_lightning.core.errors import GSPOError

T = TypeVar("T")

_group: ContextVar[dist.ProcessGroup | None] = ContextVar("group", default=None)
"""Process group of this thread's collectives; None is the default one."""

_OF_RANKS = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK", "NODE_RANK")
"""Variables that Lightning sets for the processes it starts, and leaves in the process that started them."""


@contextlib.contextmanager
def leaves_no_group(*, of_many: bool = True) -> Iterator[None]:
    """End a process group that is made in this block, and restore the environment variables of its ranks.

    Otherwise the next command of this process (a notebook, ``gspo compare``) would believe it is still a rank. If the
    block fails, only a group of this process alone is ended: others may be in the middle of a collective.

    Args:
        of_many: also end a group of several processes, if the others do nothing after the block.
    """
    had_group = dist.is_available() and dist.is_initialized()
    variables = {name: os.environ.get(name) for name in _OF_RANKS}
    failed = True
    try:
        yield
        failed = False
    finally:
        world = rank_and_world()[1]
        if not had_group and (world == 1 or (of_many and not failed)):
            if dist.is_available() and dist.is_initialized():
                dist.destroy_process_group()
            for name, value in variables.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value


def rank_and_world() -> tuple[int, int]:
    """Return this process's rank and the number of processes."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def another_group() -> dist.ProcessGroup | None:
    """Return a second group of all ranks, on the CPU; None in a single process. A collective.

    A second thread needs its own group: which of two threads calls a collective first differs from rank to rank, and
    on one group the first call of each rank would be matched.
    """
    return dist.new_group(backend="gloo") if rank_and_world()[1] > 1 else None


@contextlib.contextmanager
def through(group: dist.ProcessGroup | None) -> Iterator[None]:
    """Route this thread's collectives of this module through a group within the block; None is the default one."""
    token = _group.set(group)
    try:
        yield
    finally:
        _group.reset(token)


def group() -> dist.ProcessGroup | None:
    """Return the group of this thread's collectives; None is the default one."""
    return _group.get()


def local(tensor: Tensor) -> Tensor:
    """Return this rank's shard of a tensor, or the tensor itself if it is not sharded (or a shard, as in FSDP1)."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def all_sum(values: Tensor) -> Tensor:
    """Return the sum over ranks, out of place."""
    if rank_and_world()[1] == 1:
        return values
    total = values.clone()
    dist.all_reduce(total, group=_group.get())
    return total


def all_max(values: Tensor) -> Tensor:
    """Return the maximum over ranks, element by element, out of place."""
    if rank_and_world()[1] == 1:
        return values
    total = values.clone()
    dist.all_reduce(total, op=dist.ReduceOp.MAX, group=_group.get())
    return total


def largest(value: int, device: torch.device) -> int:
    """Return the largest of the ranks' values."""
    if rank_and_world()[1] == 1:
        return value
    maximum = torch.tensor(value, device=device)
    dist.all_reduce(maximum, op=dist.ReduceOp.MAX, group=_group.get())
    return int(maximum)


def all_gather_objects(value: Any) -> list[Any]:
    """Return every rank's value, in rank order. For small control data, not for the hot path."""
    world = rank_and_world()[1]
    if world == 1:
        return [value]
    gathered: list[Any] = [None] * world
    dist.all_gather_object(gathered, value, group=_group.get())
    return gathered


def from_first_rank(make: Callable[[], T]) -> T:
    """Call ``make`` on rank 0 only, and return its result on every rank. A collective."""
    rank, world = rank_and_world()
    if world == 1:
        return make()
    broadcast: list[Any] = [make() if rank == 0 else None]
    dist.broadcast_object_list(broadcast, src=0, group=_group.get())
    value: T = broadcast[0]
    return value


def gather_objects(value: Any) -> list[Any]:
    """Return every rank's value, in rank order, on rank 0, which writes checkpoints; nothing on the others."""
    rank, world = rank_and_world()
    if world == 1:
        return [value]
    gathered: list[Any] = [None] * world if rank == 0 else []
    dist.gather_object(value, gathered if rank == 0 else None, group=_group.get())
    return gathered


def all_gathered(words: Iterable[str]) -> list[str]:
    """Return the words of all ranks, one rank after another; for a few words."""
    return [word for rank_words in all_gather_objects(list(words)) for word in rank_words]


def all_names(names: Iterable[str]) -> list[str]:
    """Return the names that any rank has, sorted: the data that a rank holds must not shape what it sends."""
    return sorted(set(all_gathered(set(names))))


@contextlib.contextmanager
def fail_together() -> Iterator[None]:
    """Raise one rank's deliberate error on all ranks after the block: no rank waits for one that has gone."""
    failure: GSPOError | None = None
    try:
        yield
    except GSPOError as error:
        if rank_and_world()[1] == 1:
            raise
        failure = error
    if rank_and_world()[1] > 1:
        for rank_failure in all_gather_objects(failure):
            if rank_failure is not None:
                raise failure or rank_failure


def gather_rows(values: Tensor) -> Tensor:
    """Gather equally long vectors [N] into [world, N], in rank order."""
    world = rank_and_world()[1]
    if world == 1:
        return values.unsqueeze(0)
    gathered = [torch.empty_like(values) for _ in range(world)]
    dist.all_gather(gathered, values.contiguous(), group=_group.get())
    return torch.stack(gathered)
