"""Whole weights of a sharded policy: on every rank at once, or on the first rank one tensor after the other."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard

from gspo_lightning.core.distributed import all_sum, group, local, rank_and_world
from gspo_lightning.core.errors import InfrastructureError
from gspo_lightning.core.types import MicroBatch
from gspo_lightning.policy.adapters.adapter_files import MARK
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.strategies.sharding import counts, names_of_whole, reshard, whole_tensors


@torch.no_grad()
def first_rank_weights(
    policy: Policy, device: torch.device, dtype: torch.dtype | None = None, *, adapters_only: bool = False
) -> Iterator[tuple[str, Tensor]]:
    """Yield each whole tensor on rank 0, and nothing on others, which send their shards one by one; a collective.

    FSDP1 can only gather a whole layer at a time on every rank: the others drop it at once.
    """
    first = rank_and_world()[0] == 0
    for name, tensor in whole_tensors(policy):
        if adapters_only and MARK not in name:
            continue
        shard = tensor.detach()
        new_dtype = dtype if tensor.is_floating_point() else None
        if isinstance(shard, DTensor):
            whole = _on_first_rank(shard.to(device=device, dtype=new_dtype))
        else:
            whole = shard.to(device=device, dtype=new_dtype, copy=True) if first else None
        if whole is not None:
            pair = name.removeprefix("model."), whole
            del shard, whole  # only the caller holds a tensor while the next one is gathered
            yield pair
            del pair


class Gathering:
    """Plain twin of a sharded policy: without weights, filled from the shards for a while.

    Args:
        policy: before it is sharded.
        device: computes with the whole weights.
        dtype: of parameters in forward passes; None keeps each parameter's own.
        lockstep: never gather the whole policy: compute from the shards, all ranks in step.
    """

    def __init__(
        self, policy: Policy, device: torch.device, dtype: torch.dtype | None, *, lockstep: bool = False
    ) -> None:
        self.device = device
        self.dtype = dtype
        self.lockstep = lockstep
        blank: dict[int, Any] = {}  # a memo of copy.deepcopy: the copy takes these instead of the weights
        for parameter in policy.model.parameters():
            blank[id(parameter)] = nn.Parameter(self._kept(parameter.detach(), "meta"), False)
        self.twin = policy.frozen_copy(blank)
        self.twin.eval()
        self.twin.on_release = self.clear
        first_name: dict[int, str] = {}
        self._places: dict[str, list[tuple[nn.Module, str]]] = {}
        for name, parameter in self.twin.model.named_parameters(remove_duplicate=False):  # tied parameters have several
            owner, _, leaf = name.rpartition(".")
            key = first_name.setdefault(id(parameter), name)
            self._places.setdefault(key, []).append((self.twin.model.get_submodule(owner), leaf))
        self._blank: dict[str, nn.Parameter | None] = {}
        for name, places in self._places.items():
            module, leaf = places[0]
            self._blank[name] = module._parameters[leaf]

    def fill(self, weights: Iterable[tuple[str, Tensor]]) -> Policy:
        """Return the twin with these weights, given by their names in the transformers model."""
        for name, tensor in weights:
            self._put(name, nn.Parameter(tensor, requires_grad=False))
        for module in self.twin.modules():
            for name, buffer in module._buffers.items():
                module._buffers[name] = None if buffer is None else buffer.to(self.device)
        return self.twin

    to_first_rank = staticmethod(first_rank_weights)

    @contextlib.contextmanager
    def streaming(self, policy: Policy) -> Iterator[Policy]:
        """Yield the twin without weights, whose :attr:`Policy.stream` passes them on to the first rank."""
        self.twin.stream = WeightStream(policy, self)
        try:
            yield self.twin
        finally:
            self.twin.stream = None

    def clear(self) -> None:
        """Free the memory of the weights."""
        for name, blank in self._blank.items():
            self._put(name, blank)

    def _kept(self, tensor: Tensor, device: str) -> Tensor:
        return torch.empty_like(tensor, device=device, dtype=self.dtype if tensor.is_floating_point() else None)

    def _put(self, name: str, parameter: nn.Parameter | None) -> None:
        for owner, leaf in self._places[name]:
            owner._parameters[leaf] = parameter


class WeightStream:
    """Whole weights of a sharded policy on the first rank, one tensor at a time, while other ranks follow its orders.

    The first rank gathers as it sends, so it never holds more than its shards and what is being sent. It decides how
    often: once for files, once for each server from GPU to GPU, and again after a failure. All its methods are for one
    thread at a time, which need not be the one that leads.

    Args:
        policy: sharded.
        gathering: its plain twin.
    """

    def __init__(self, policy: Policy, gathering: Gathering) -> None:
        self.policy = policy
        self.gathering = gathering
        self.device = gathering.device
        self.open = False
        """True while the other ranks follow."""
        self._group = group()
        self._lock = threading.Lock()
        self._pass: Iterator[tuple[str, Tensor]] | None = None

    @contextlib.contextmanager
    def lead(self) -> Iterator[None]:
        """Give orders inside this block, on the first rank; at its end, also after a failure, others are let go."""
        self.open = True
        try:
            yield
        finally:
            with self._lock:
                self._finish_pass()
                self.open = False
                self._order("end")

    def follow(self) -> None:
        """Do what the first rank orders until it lets go; on every other rank."""
        while True:
            order, *details = self._order()
            if order == "end":
                return
            if order == "weights":
                for _ in self._gathered(*details):
                    pass
            elif order == "forward":
                self._forward(*details)
            else:
                self._norm()

    @property
    def names(self) -> list[str]:
        """Names in the transformers model, in the order of :meth:`weights`."""
        return [name.removeprefix("model.") for name in names_of_whole(self.policy)]

    def weights(self, *, adapters_only: bool = False) -> Iterator[tuple[str, Tensor]]:
        """Yield each whole tensor with its name in the transformers model; on the first rank, as often as it likes.

        Raises:
            InfrastructureError: another pass has begun, or :meth:`lead` has ended.
        """
        with self._lock:
            self._begin("weights", adapters_only)
            gathering = self._pass = self._gathered(adapters_only)
        while True:
            with self._lock:
                if self._pass is not gathering:
                    raise InfrastructureError("the weights that were being sent are no longer gathered")
                pair = next(gathering, None)
                if pair is None:
                    self._pass = None
                    return
            yield pair
            del pair  # before the next one is gathered

    def logprobs(self, batch: MicroBatch, temperature: float) -> Tensor:
        """Return log-probabilities [N, T] of a micro-batch, computed from the shards by all ranks in step."""
        with self._lock:
            self._begin("forward", batch, temperature)
            return self._forward(batch, temperature)

    def frozen_norm(self) -> float:
        """Return the norm of all weights that are no adapters, computed from the shards."""
        with self._lock:
            self._begin("norm")
            return self._norm()

    @contextlib.contextmanager
    def adapters(self) -> Iterator[Policy]:
        """Yield the twin with its adapters, and without any other weight."""
        try:
            yield self.gathering.fill(self.weights(adapters_only=True))
        finally:
            self.gathering.clear()

    def _begin(self, *order: Any) -> None:
        if not self.open:
            raise InfrastructureError("weights can only be gathered while all ranks take part")
        self._finish_pass()
        self._order(*order)

    def _finish_pass(self) -> None:
        """Gather what is left of a pass that was given up: other ranks are in the middle of it."""
        unfinished = self._pass
        self._pass = None
        if unfinished is not None:
            for _ in unfinished:
                pass

    def _order(self, *order: Any) -> Any:
        broadcast: list[Any] = [order]
        dist.broadcast_object_list(broadcast, src=0, group=self._group)
        return broadcast[0]

    def _gathered(self, adapters_only: bool) -> Iterator[tuple[str, Tensor]]:
        return first_rank_weights(self.policy, self.device, self.gathering.dtype, adapters_only=adapters_only)

    @torch.no_grad()
    def _forward(self, batch: MicroBatch, temperature: float) -> Tensor:
        logprobs: Tensor = self.policy(batch.to(self.device), temperature)[0]
        reshard(self.policy)
        return logprobs

    @torch.no_grad()
    def _norm(self) -> float:
        square = torch.zeros((), dtype=torch.float64, device=self.device)
        for name, weight in self.policy.named_parameters():
            if MARK not in name and counts(weight):
                square += local(weight).to(self.device).double().square().sum()
        return float(all_sum(square).sqrt())


@contextlib.contextmanager
def leading(policy: Policy) -> Iterator[bool]:
    """Yield True on the first rank, where weights are sent from, and False on others.

    Of a policy with a stream, the first rank leads inside the block; others have followed it before theirs begins.
    """
    first = rank_and_world()[0] == 0
    if policy.stream is None:
        yield first
    elif first:
        with policy.stream.lead():
            yield True
    else:
        policy.stream.follow()
        yield False


def _on_first_rank(tensor: Tensor) -> Tensor | None:
    """Gather a tensor split into equal pieces of rows, the last ones shorter; return None except on the first rank."""
    assert isinstance(tensor, DTensor)
    mesh = tensor.device_mesh
    if mesh.ndim != 1 or tuple(tensor.placements) != (Shard(0),):
        everywhere = tensor.full_tensor()
        return everywhere if rank_and_world()[0] == 0 else None
    shard = tensor.to_local()
    rows = -(-tensor.shape[0] // mesh.size())
    if shard.shape[0] < rows:
        shard = torch.cat([shard, shard.new_zeros(rows - shard.shape[0], *shard.shape[1:])])
    first = mesh.get_local_rank() == 0
    whole = shard.new_empty(rows * mesh.size(), *shard.shape[1:]) if first else None
    parts = None if whole is None else list(whole.chunk(mesh.size()))
    dist.gather(shard.contiguous(), parts, group=mesh.get_group(), group_dst=0)
    return None if whole is None else whole[: tensor.shape[0]]
