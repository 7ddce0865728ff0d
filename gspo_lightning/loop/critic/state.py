"""Checkpoint state of a critic: whole tensors under the model's names, for any number of ranks.

Both versions of FSDP give each rank a contiguous piece of every flattened parameter, in rank order. So tensors are
written flat, as the concatenation of all pieces, and a rank reads its piece behind those of the ranks before it. With
replicas (HSDP) the first one alone writes, and each reads for itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from gspo_lightning.core.distributed import all_gather_objects, gather_objects, local, rank_and_world
from gspo_lightning.policy.strategies.sharding import counts, is_sharded, plain_name

_MOMENTS = ("exp_avg", "exp_avg_sq")


def written_state(
    backbone: nn.Module | None, head: nn.Linear, optimizers: Sequence[torch.optim.Optimizer]
) -> dict[str, Any]:
    """Return the critic's state as tensors and primitives; with a sharded backbone a collective, whole on rank 0 only.

    Args:
        backbone: holds the parameters of the second optimizer, AdamW; None if only the head is trained.
        head: holds those of the first.
        optimizers: one or two.
    """
    state: dict[str, Any] = {"head": _cpu(head.state_dict()), "head_optimizer": _cpu(optimizers[0].state_dict())}
    if backbone is not None:
        sharded = is_sharded(backbone)
        state["trunk"] = {}
        for name, parameter in _trained(backbone).items():
            moments = optimizers[1].state.get(parameter, {})  # none before the first step
            tensors = {"weight": parameter.detach()}
            tensors |= {key: moments[key] for key in _MOMENTS if key in moments}
            written = tensors if counts(parameter) else {}
            pieces = {key: local(tensor).flatten().cpu().clone() for key, tensor in written.items()}
            state["trunk"][name] = _joined(pieces, float(moments.get("step", 0.0)), sharded)
    return state


def read_state(
    state: Mapping[str, Any], backbone: nn.Module | None, head: nn.Linear, optimizers: Sequence[torch.optim.Optimizer]
) -> None:
    """Load what :func:`written_state` returned; every rank has the whole state. Keeps the learning rate of this run."""
    head.load_state_dict(state["head"])
    rates = [group["lr"] for group in optimizers[0].param_groups]
    optimizers[0].load_state_dict(state["head_optimizer"])
    for group, lr in zip(optimizers[0].param_groups, rates, strict=True):
        group["lr"] = lr
    if backbone is None:
        return
    parameters = _trained(backbone)
    starts = _starts(parameters, is_sharded(backbone))
    fused = _fused(optimizers[1])
    for name, parameter in parameters.items():
        saved = state["trunk"][name]
        _fill(parameter.detach(), saved["weight"], starts[name])
        if "exp_avg" not in saved:
            continue
        moments = {key: torch.zeros_like(parameter.detach()) for key in _MOMENTS}
        for key, moment in moments.items():
            _fill(moment, saved[key], starts[name])
        # a fused AdamW counts its steps beside the parameter, any other one on the host
        step_device = parameter.device if id(parameter) in fused else torch.device("cpu")
        step = torch.tensor(saved["step"], dtype=torch.float32, device=step_device)
        optimizers[1].state[parameter] = {"step": step, **moments}


def _fused(optimizer: torch.optim.Optimizer) -> set[int]:
    """Return the ids of the parameters that one kernel updates."""
    groups = [group for group in optimizer.param_groups if group.get("fused")]
    return {id(parameter) for group in groups for parameter in group["params"]}


def _trained(backbone: nn.Module) -> dict[str, nn.Parameter]:
    return {plain_name(name): p for name, p in backbone.named_parameters() if p.requires_grad}


def _joined(pieces: dict[str, Tensor], step: float, sharded: bool) -> dict[str, Any]:
    """Join the pieces of all ranks on the first; a rank without a piece of a parameter has no state for it."""
    if not sharded:
        return {"step": step, **pieces}
    gathered = gather_objects((pieces, step))  # rank by rank; nothing on ranks other than the first
    keys = {key for rank_pieces, _ in gathered for key in rank_pieces}
    joined: dict[str, Any] = {"step": max((rank_step for _, rank_step in gathered), default=0.0)}
    for key in sorted(keys):
        joined[key] = torch.cat([rank_pieces[key] for rank_pieces, _ in gathered if key in rank_pieces])
    return joined


def _starts(parameters: Mapping[str, nn.Parameter], sharded: bool) -> dict[str, int]:
    """Return the offset of this rank's piece in each flattened parameter."""
    if not sharded:
        return dict.fromkeys(parameters, 0)
    sizes = {name: local(parameter.detach()).numel() for name, parameter in parameters.items()}
    sizes_by_rank = all_gather_objects(sizes)
    starts = {}
    for name, parameter in parameters.items():
        earlier_ranks = sizes_by_rank[: _number_of_shard(parameter)]
        starts[name] = sum(rank_sizes[name] for rank_sizes in earlier_ranks)
    return starts


def _number_of_shard(parameter: nn.Parameter) -> int:
    """Return the number of this rank's shard: that of the rank, counted within its replica if there are several."""
    mesh = parameter.device_mesh if isinstance(parameter, DTensor) else None
    return rank_and_world()[0] if mesh is None or mesh.ndim == 1 else mesh.get_local_rank(mesh.ndim - 1)


def _fill(target: Tensor, flat: Tensor, start: int) -> None:
    """Copy this rank's piece of a flattened tensor into its shard of ``target``."""
    piece = local(target)
    piece.copy_(flat[start : start + piece.numel()].view(piece.shape))


def _cpu(state: Any) -> Any:
    """Return a copy whose tensors are on the CPU."""
    if isinstance(state, Tensor):
        return state.detach().cpu().clone()
    if isinstance(state, dict):
        return {key: _cpu(value) for key, value in state.items()}
    return [_cpu(value) for value in state] if isinstance(state, list) else state
