"""Bytes that ranks read and receive, counted on real processes: loading a checkpoint, and one hand-over of weights."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from safetensors import safe_open
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import modeling_utils

from benchmarks.models import Shape, build_model, word_tokenizer
from gspo_lightning.policy.loading import load_policy
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.settings import ModelSettings
from gspo_lightning.strategies.layers import decoder_layers
from gspo_lightning.strategies.sharding import Gathering, gathered

__all__ = ["Traffic", "traffic_of"]

SHAPE = Shape(256, 64, 4, 4, 2, 16, 128)
COLLECTIVES = ("all_gather", "allgather", "broadcast", "scatter", "gather_", "recv", "all_to_all", "alltoall")


@dataclass(frozen=True)
class Traffic:
    """Averages over ranks, in units of the model's bytes."""

    loaded: float
    """Read from the checkpoint while the policy is loaded."""
    gathered: float
    """Received from other ranks while the weights are put together for a source that rank 0 alone serves."""


class _Received(TorchDispatchMode):
    """Bytes that collectives bring to this rank."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if "c10d" in func.namespace and any(word in name for word in COLLECTIVES):
            given = sum(x.nbytes for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor))
            self.bytes += sum(x.nbytes for x in tree_leaves(out) if isinstance(x, Tensor)) - given
        return out


class _Slice:
    """A tensor of a file that has not been read yet."""

    def __init__(self, inner: Any, read: Callable[[int], None]) -> None:
        self._inner, self._read = inner, read

    def __getitem__(self, place: Any) -> Tensor:
        found: Tensor = self._inner[place]
        self._read(found.nbytes)
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _File:
    """What ``safe_open`` returns; says how many bytes of it are read."""

    def __init__(self, read: Callable[[int], None], *args: Any, **options: Any) -> None:
        self._inner, self._read = safe_open(*args, **options), read

    def __enter__(self) -> _File:
        self._inner.__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        self._inner.__exit__(*error)  # type: ignore[no-untyped-call]

    def get_tensor(self, name: str) -> Tensor:
        """All of a tensor."""
        found: Tensor = self._inner.get_tensor(name)  # type: ignore[no-untyped-call]
        self._read(found.nbytes)
        return found

    def get_slice(self, name: str) -> _Slice:
        """A tensor to be read later."""
        return _Slice(self._inner.get_slice(name), self._read)  # type: ignore[no-untyped-call]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def _load(folder: Path) -> tuple[Policy, int]:
    """The policy as a run loads it, and the bytes that were read."""
    read: list[int] = []
    with mock.patch.object(modeling_utils, "safe_open", lambda *a, **o: _File(read.append, *a, **o)):
        policy = load_policy(ModelSettings(str(folder)))
    return policy, sum(read)


def _shard(policy: Policy, world: int) -> Policy:
    """As ``FSDP2Strategy`` does, without a trainer."""
    mesh = init_device_mesh("cpu", (world,))
    policy.gathering = Gathering(policy, torch.device("cpu"), None)
    for layer in decoder_layers(policy):
        fully_shard(layer, mesh=mesh)
    fully_shard(policy, mesh=mesh)
    return policy


def _rank(rank: int, world: int, folder: Path, answers: Any) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=world)
    policy, read = _load(folder / "model")
    policy = _shard(policy, world)
    received = _Received()
    with torch.no_grad(), received, gathered(policy) as plain:
        for parameter in plain.model.parameters():
            assert parameter.device.type != "meta"
    answers.put((read, received.bytes))
    dist.barrier()
    dist.destroy_process_group()


def traffic_of(world: int) -> Traffic:
    """Of so many processes over gloo; forked, so before anything is computed in this one.

    Raises:
        RuntimeError: one of them failed.
    """
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = build_model(SHAPE)
        model.save_pretrained(folder / "model")
        word_tokenizer(SHAPE.vocabulary).save_pretrained(folder / "model")
        size = sum(p.nbytes for p in model.parameters())
        answers = context.SimpleQueue()
        ranks = [context.Process(target=_rank, args=(rank, world, folder, answers)) for rank in range(world)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join(120)
        if any(process.exitcode != 0 for process in ranks):
            for process in ranks:
                process.kill()
            raise RuntimeError(f"ranks ended with {[process.exitcode for process in ranks]}")
        found = [answers.get() for _ in ranks]
    loaded, received = (sum(numbers) / world / size for numbers in zip(*found, strict=True))
    return Traffic(loaded, received)
