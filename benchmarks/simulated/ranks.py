"""Bytes that ranks read and receive, counted on real processes: loading a checkpoint, and one hand-over of weights."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from safetensors import safe_open
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import modeling_utils

from benchmarks.models import Shape, build_model, word_tokenizer
from gspo_lightning.core.distributed import local
from gspo_lightning.policy.load.loading import load_policy
from gspo_lightning.policy.load.model_settings import ModelSettings
from gspo_lightning.policy.strategies import FSDP2Strategy
from gspo_lightning.policy.strategies.gathering import leading
from gspo_lightning.policy.strategies.layers import decoder_layers
from gspo_lightning.policy.strategies.loading import made_by_first_rank
from gspo_lightning.policy.strategies.sharding import gathered
from gspo_lightning.rollouts import VLLMServer

__all__ = ["Held", "Received", "Traffic", "WithoutTrainer", "traffic_of"]

SHAPE = Shape(256, 64, 4, 4, 2, 16, 128)
FROM_OTHERS = ("all_gather_into_tensor", "all_gather_into_tensor_coalesced", "all_to_all_single", "broadcast")
"""Functional collectives that bring data: they return what was received, and what this rank gave."""
IN_PLACE = ("allgather", "allgather_base", "allgather_coalesced", "allgather_into_tensor_coalesced", "gather",
            "alltoall", "alltoall_base")  # fmt: skip
FROM_ROOT = {"broadcast": 2, "scatter": 3}
"""Where their arguments name the rank that has the data."""


@dataclass(frozen=True)
class Traffic:
    """Averages over ranks in units of the model's bytes; peaks of any rank but the first in units of a layer's."""

    loaded: float
    """Read from the checkpoint while the policy is loaded."""
    gathered: float
    """Received from other ranks while the weights are put together for a source that rank 0 alone serves."""
    peak_loading: float
    """Allocated above the shard while the policy is loaded and sharded."""
    peak_gathering: float
    """Allocated above the shard while the weights are put together."""
    peak_sending: float
    """Allocated above the shard on the first rank meanwhile, in units of the largest tensor."""


class Received(TorchDispatchMode):
    """Bytes that collectives bring to this rank."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__.strip("_")
        if func.namespace == "_c10d_functional" and name in FROM_OTHERS:
            self.bytes += _size(out) - _size(args)
        elif func.namespace == "c10d":
            if name in IN_PLACE:
                self.bytes += max(0, _size(args[0]) - _size(args[1]))  # no outputs where another rank collects
            elif name in FROM_ROOT:
                self.bytes += _size(args[0]) * (args[FROM_ROOT[name]] != dist.get_rank())
            elif name.startswith("recv"):
                self.bytes += _size(args[0])
        return out


def _size(tree: Any) -> int:
    return sum(leaf.nbytes for leaf in tree_leaves(tree) if isinstance(leaf, Tensor))


class Held(TorchDispatchMode):
    """The most bytes that tensors made in here hold at a time."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.most = 0
        self._made: dict[int, StorageWeakRef] = {}
        """Storages that were made in here."""
        self._known: dict[int, StorageWeakRef] = {}
        """Those that were there before."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # until it is a plain tensor
        for tensor in _plain((args, kwargs)):
            reference = StorageWeakRef(tensor.untyped_storage())
            if reference.cdata not in self._made:
                self._known[reference.cdata] = reference
        out = func(*args, **(kwargs or {}))
        for tensor in _plain(out):
            reference = StorageWeakRef(tensor.untyped_storage())
            known = self._known.get(reference.cdata)
            if known is None or known.expired():
                self._made[reference.cdata] = reference
        self._made = {key: one for key, one in self._made.items() if not one.expired()}
        self.most = max(self.most, sum(map(_now, self._made.values())))
        return out


def _now(reference: StorageWeakRef) -> int:
    """Bytes of a storage, which FSDP frees by resizing it to nothing."""
    storage: Any = torch.UntypedStorage._new_with_weak_ptr(reference.cdata)
    return 0 if storage is None else int(storage.nbytes())


def _plain(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor) and not leaf.is_meta]


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


class WithoutTrainer(FSDP2Strategy):
    """Shards on CPUs as a run does, without a trainer."""

    def __init__(self, world: int) -> None:
        super().__init__()
        self._mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("data_parallel",))

    @property
    def root_device(self) -> torch.device:
        return torch.device("cpu")

    @property
    def device_mesh(self) -> DeviceMesh:
        return self._mesh


@dataclass(frozen=True)
class _Counted:
    """On one rank, in bytes."""

    read: int
    received: int
    loading: int
    gathering: int
    layer: int
    tensor: int


def _rank(rank: int, world: int, folder: Path, answers: Any) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=world)
    strategy, received, read = WithoutTrainer(world), Received(), list[int]()
    counting = mock.patch.object(modeling_utils, "safe_open", lambda *a, **o: _File(read.append, *a, **o))
    with counting, Held() as loading:
        policy = made_by_first_rank(lambda: load_policy(ModelSettings(str(folder / "model"))))
        layer = max(sum(p.nbytes for p in one.parameters()) for one in decoder_layers(policy))
        policy = strategy.shard(policy)
    shard = sum(local(p).nbytes for p in policy.parameters())
    tensor = max(p.numel() * p.element_size() for p in policy.parameters())
    with torch.no_grad(), Held() as gathering, received, gathered(policy, VLLMServer().weights_on) as plain:
        assert {p.device.type for p in plain.model.parameters()} == {"meta"}
        with leading(plain) as leads:
            for _ in plain.stream.weights() if leads else ():
                pass
    answers.put(_Counted(sum(read), received.bytes, loading.most - shard, gathering.most, layer, tensor))
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
        queues = [context.SimpleQueue() for _ in range(world)]
        ranks = [context.Process(target=_rank, args=(rank, world, folder, queues[rank])) for rank in range(world)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join(120)
        if any(process.exitcode != 0 for process in ranks):
            for process in ranks:
                process.kill()
            raise RuntimeError(f"ranks ended with {[process.exitcode for process in ranks]}")
        found: Sequence[_Counted] = [queue.get() for queue in queues]
    others = found[1:]
    return Traffic(
        sum(one.read for one in found) / world / size,
        sum(one.received for one in found) / world / size,
        max(one.loading / one.layer for one in others),
        max(one.gathering / one.layer for one in others),
        found[0].gathering / found[0].tensor,
    )
