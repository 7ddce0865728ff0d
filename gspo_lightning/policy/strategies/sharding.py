"""Sharded parameters: global norms, forward passes in step, and whole weights.

Every function here also takes plain policies, for which it does the usual.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from lightning.pytorch.utilities import GradClipAlgorithmType
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.distributed.tensor import DTensor

from gspo_lightning.core.distributed import all_sum, gather_rows, largest, local
from gspo_lightning.core.types import WeightsOn
from gspo_lightning.policy.policy import Policy

T = TypeVar("T")
_WRAPPERS = ("_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")


def is_sharded(policy: nn.Module) -> bool:
    """True if the parameters are sharded over ranks: then every rank must run the same number of forward passes."""
    return isinstance(policy, FSDPModule | FullyShardedDataParallel)


def unwrapped(policy: Policy) -> Policy:
    """Return the policy itself if FSDP1 has wrapped it: attributes are set there."""
    inner: Any = policy.module if isinstance(policy, FullyShardedDataParallel) else policy
    plain: Policy = inner
    return plain


def units(policy: nn.Module) -> list[tuple[str, Any]]:
    """Return the modules whose parameters are gathered together, the outermost first, under their plain names."""
    wrapped = ((n, m) for n, m in policy.named_modules() if isinstance(m, FSDPModule | FullyShardedDataParallel))
    return [(plain_name(f"{name}.").removesuffix("."), module) for name, module in wrapped]


def total_norm(tensors: Iterable[Tensor], *, sharded: bool, device: torch.device, norm_type: float = 2.0) -> float:
    """Return the joint norm of tensors; of shards over all ranks (a collective), the same number on every rank."""
    if not sharded:
        return float(nn.utils.get_total_norm(list(tensors), norm_type))
    shards = [local(tensor) for tensor in tensors if counts(tensor)]
    shards = [shard for shard in shards if shard.numel()]
    rank_norm = nn.utils.get_total_norm(shards, norm_type) if shards else torch.zeros(())
    norms = gather_rows(rank_norm.to(device).double().reshape(1))
    return float(torch.linalg.vector_norm(norms, norm_type))


def counts(tensor: Tensor) -> bool:
    """False for the shard of a replica but the first (HSDP): the first has the same."""
    mesh = tensor.device_mesh if isinstance(tensor, DTensor) else None
    return mesh is None or mesh.ndim == 1 or mesh.get_local_rank(0) == 0


def clip_gradients(parameters: Iterable[nn.Parameter], norm: float, limit: float, algorithm: str | None = None) -> None:
    """Clip gradients in place, every rank its shards, by a norm that is known: PyTorch's own would read them again.

    A norm within the limit writes nothing. The factor is that of ``torch.nn.utils.clip_grad_norm_``, to the bit.

    Args:
        parameters: with gradients.
        norm: norm of all gradients over all ranks.
        limit: limit of that norm, or with ``value`` of each element's size.
        algorithm: Lightning's name; None: ``norm``.
    """
    gradients = [local(parameter.grad) for parameter in parameters if parameter.grad is not None]
    gradients = [gradient for gradient in gradients if gradient.numel()]
    if algorithm == GradClipAlgorithmType.VALUE:  # a str enum: str() is not its value
        for gradient in gradients:
            gradient.clamp_(-limit, limit)
        return
    factor = float(limit / (torch.tensor(norm, dtype=torch.float32) + 1e-6))
    if gradients and factor < 1.0:
        torch._foreach_mul_(gradients, factor)


@contextlib.contextmanager
def without_sync(policy: nn.Module) -> Iterator[None]:
    """Keep gradients of a backward pass in this context on this rank, whole; the next one outside reduces them, too."""
    if isinstance(policy, FullyShardedDataParallel):
        with policy.no_sync():
            yield
    elif isinstance(policy, FSDPModule):
        policy.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            policy.set_requires_gradient_sync(True)
    else:
        yield


def in_step(policy: nn.Module, parts: Sequence[T], device: torch.device) -> list[tuple[T, bool]]:
    """Pair ``parts`` with True; those paired with False keep this rank in step with the others of a sharded policy.

    Call it before the first forward pass: ranks agree here, and a rank that computes cannot agree on anything. For
    False, compute :func:`gspo_lightning.policy.packing.batches.filler` of the part.
    """
    paired = [(part, True) for part in parts]
    if not is_sharded(policy):
        return paired
    filler = (parts[-1], False)
    context = getattr(policy, "context", None)
    if context is not None:
        return [filler if index is None else paired[index] for index in context.turns(len(parts), device)]
    missing = largest(len(parts), device) - len(parts)
    return [*paired, *[filler] * missing]


@contextlib.contextmanager
def gathered(policy: Policy, weights_on: WeightsOn = WeightsOn.EVERY_RANK) -> Iterator[Policy]:
    """Yield a plain policy with all weights, for forward passes whose number differs between ranks. No gradients.

    A collective for sharded policies: every rank must call it, with the same ``weights_on``. It makes one copy of all
    parameters in the compute dtype on the ranks that need it; on others the policy is on the meta device. For
    ``STREAMED`` it is there on all ranks: rank 0 takes the weights from :attr:`Policy.stream`, others follow.
    """
    if not is_sharded(policy):
        yield policy
        return
    gathering = policy.gathering
    if weights_on is WeightsOn.NO_RANK:
        yield gathering.twin
        return
    if gathering.lockstep and weights_on is WeightsOn.EVERY_RANK:
        with _lockstep(policy):
            yield policy
        return
    if weights_on is WeightsOn.STREAMED:
        with gathering.streaming(policy) as twin:
            yield twin
        return
    first = weights_on is WeightsOn.FIRST_RANK
    collect = gathering.to_first_rank if first else full_weights
    try:
        yield gathering.fill(collect(policy, gathering.device, gathering.dtype))
    finally:
        gathering.clear()


@contextlib.contextmanager
def _lockstep(policy: Policy) -> Iterator[None]:
    """Make every forward pass of the backbone wait for the other ranks.

    A rank that has finished computes along with them. The parameters outside the layers (embedding, head) stay gathered
    meanwhile.
    """
    running = torch.ones((), device=policy.device)
    policy.unshard()  # type: ignore[operator]

    def tell(*_: object) -> None:
        all_sum(running)

    handle = policy.backbone.register_forward_pre_hook(tell)
    try:
        yield
    finally:
        handle.remove()
        with torch.no_grad():
            while float(all_sum(torch.zeros_like(running))) > 0:
                policy.backbone(input_ids=torch.zeros(1, 1, dtype=torch.int64, device=policy.device), use_cache=False)
        policy.reshard()  # type: ignore[operator]


@torch.no_grad()
def full_weights(
    policy: Policy, device: torch.device, dtype: torch.dtype | None = None
) -> Iterator[tuple[str, Tensor]]:
    """Yield each whole tensor with its name in the transformers model; a collective for sharded policies."""
    for name, tensor in whole_tensors(policy):
        whole = tensor.detach().to(device=device, dtype=dtype if tensor.is_floating_point() else None)
        if isinstance(whole, DTensor):
            whole = whole.full_tensor()
        is_original = whole.data_ptr() == tensor.data_ptr()
        yield name.removeprefix("model."), whole.clone() if is_original else whole


def whole_tensors(policy: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield each parameter with its name: of FSDP2 the shards, of FSDP1 whole ones, a unit at a time; a collective."""
    if not isinstance(policy, FullyShardedDataParallel):
        for _, unit in units(policy):
            unit.reshard()  # a forward pass without a backward pass leaves it whole
        yield from policy.named_parameters()
        return
    for prefix, unit in units(policy):
        with FullyShardedDataParallel.summon_full_params(unit, recurse=False, writeback=False):
            yield from _own(prefix, unit)


def names_of_whole(policy: nn.Module) -> list[str]:
    """Return the names of :func:`whole_tensors` in its order, without gathering anything."""
    if not isinstance(policy, FullyShardedDataParallel):
        return [name for name, _ in policy.named_parameters()]
    return [name for prefix, unit in units(policy) for name, _ in _own(prefix, unit)]


def _own(prefix: str, unit: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Return the parameters of an FSDP1 unit without those of the units inside it."""
    inner = [f"{name}." for name, _ in units(unit) if name]
    named = [(plain_name(name), p) for name, p in unit.named_parameters()]
    without_inner = [(name, p) for name, p in named if not name.startswith(tuple(inner))] if inner else named
    return [(f"{prefix}.{name}" if prefix else name, p) for name, p in without_inner]


def reshard(module: nn.Module) -> None:
    """Drop gathered parameters: with FSDP2, a forward pass without a backward pass leaves them whole."""
    if not isinstance(module, FullyShardedDataParallel):
        for _, unit in units(module):
            unit.reshard()


def plain_name(name: str) -> str:
    """Return a parameter's name in the model without wrappers."""
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    return name


@torch.no_grad()
def copy_weights(source: nn.Module, target: nn.Module) -> None:
    """Copy parameters and buffers between two policies of one layout, every rank its shards."""
    if isinstance(source, FullyShardedDataParallel):
        summon = FullyShardedDataParallel.summon_full_params
        for (prefix, source_unit), (_, target_unit) in zip(units(source), units(target), strict=True):
            with summon(source_unit, recurse=False, writeback=False), summon(target_unit, recurse=False):
                _copy([p for _, p in _own(prefix, source_unit)], [p for _, p in _own(prefix, target_unit)])
        _copy(list(source.buffers()), list(target.buffers()))
        return
    for policy in (source, target):
        for _, unit in units(policy):
            unit.reshard()  # a forward pass without a backward pass leaves it whole
    for tensors in ("parameters", "buffers"):
        _copy(list(getattr(source, tensors)()), list(getattr(target, tensors)()))


def _copy(source: Sequence[Tensor], target: Sequence[Tensor]) -> None:
    for target_tensor, source_tensor in zip(target, source, strict=True):
        local(target_tensor).copy_(local(source_tensor))
