"""Expert parallelism: the experts of a layer stay on their ranks, and tokens travel to them and back.

FSDP2 cuts weights [E, ...] of E experts along their first dimension, so each rank holds whole experts already. Instead
of gathering those of all others for every micro-batch, a rank sends each token to the ranks of its experts (two
all-to-alls per layer, and two in the backward pass; GShard, Lepikhin et al., arXiv 2006.16668). Shards, optimizer state
and checkpoints are those of FSDP2.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from gspo_lightning.policy.parallel.context_parallel import exchanged


def expert_modules(model: nn.Module) -> dict[str, nn.Module]:
    """Return the modules of a model that hold the weights [E, ...] of all experts of a layer, by name."""
    return {name: module for name, module in model.named_modules() if hasattr(module, "_is_expert_parallel")}


def keep_experts(experts: nn.Module, mesh: DeviceMesh) -> set[nn.Parameter]:
    """Leave each rank its own experts, as FSDP2 would cut them, and send tokens to them; returns their weights.

    Gradients of weights are those of the tokens of all ranks, divided by the number of ranks, as FSDP2 averages others.

    Args:
        experts: of :func:`expert_modules`, with weights [E, ...] on every rank, or on the meta device.
        mesh: one dimension of R ranks, where R divides E.
    """
    rank = mesh.get_local_rank()
    size = mesh.size()
    for name, whole in list(experts.named_parameters(recurse=False)):
        shard = whole.detach().chunk(size)[rank].clone()
        sharded = DTensor.from_local(shard, mesh, [Shard(0)], run_check=False)
        experts.register_parameter(name, nn.Parameter(sharded, whole.requires_grad))
    experts.forward = partial(_forward, experts, mesh.get_group())
    return set(experts.parameters(recurse=False))


def _forward(
    experts: Any, group: dist.ProcessGroup, hidden: Tensor, top_k_index: Tensor, top_k_weights: Tensor
) -> Tensor:
    """Return the sum [T, D] of the outputs of K experts for each token, weighted; a collective.

    Args:
        experts: with shards of weights.
        group: ranks that hold them, in the order of the experts.
        hidden: [T, D].
        top_k_index: experts of each token [T, K].
        top_k_weights: their weights [T, K].
    """
    size = dist.get_world_size(group)
    width = top_k_index.shape[1]
    per_rank = experts.num_experts // size
    chosen = top_k_index.reshape(-1)
    order = chosen.argsort(stable=True)
    counts = torch.bincount(chosen // per_rank, minlength=size)
    incoming = torch.empty_like(counts)
    dist.all_to_all_single(incoming, counts, group=group)
    sent, received = torch.stack([counts, incoming]).tolist()  # one wait for the device
    tokens = exchanged(hidden[order // width], sent, received, group)
    names = exchanged(chosen[order] % per_rank, sent, received, group)
    out = exchanged(_own_experts(experts, per_rank, size, tokens, names), received, sent, group)
    out = out[order.argsort()].view(*top_k_index.shape, -1) * top_k_weights.unsqueeze(-1)
    return out.sum(dim=1).to(hidden.dtype)


def _own_experts(experts: Any, count: int, size: int, tokens: Tensor, names: Tensor) -> Tensor:
    """Return the outputs [N, D] of this rank's experts, one for each of N tokens."""
    shards = dict(experts._parameters)
    whole = experts.num_experts
    experts.num_experts = count
    try:
        for name, shard in shards.items():
            experts._parameters[name] = _Averaged.apply(shard.to_local(), size)  # type: ignore[no-untyped-call]
        ones = torch.ones(len(tokens), 1, dtype=tokens.dtype, device=tokens.device)
        outputs: Tensor = type(experts).forward(experts, tokens, names.unsqueeze(1), ones)
        return outputs
    finally:
        experts._parameters.update(shards)
        experts.num_experts = whole


class _Averaged(torch.autograd.Function):
    """The weights themselves; their gradient is divided by the number of ranks."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, size: int) -> Tensor:
        ctx.size = size
        return weights.view_as(weights)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient / ctx.size, None
