"""Checkpoint state of a critic: whole tensors under the model's names, for any number of ranks.

Both versions of FSDP give each rank a contiguous piece of every flattened parameter, in rank order. So tensors are
written flat, as the concatenation of all pieces, and a rank reads its piece behind those of the ranks before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gspo_lightning.core.distributed import all_gather_objects, gather_objects, local, rank_and_world
from gspo_lightning.policy.strategies.sharding import is_sharded, plain_name

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
        sharded, found = is_sharded(backbone), {}
        for name, parameter in _trained(backbone).items():
            known = optimizers[1].state.get(parameter, {})
            parts = {"weight": parameter.detach(), **{key: known[key] for key in _MOMENTS if key in known}}
            own = {key: local(value).flatten().cpu().clone() for key, value in parts.items()}
            found[name] = _joined(own, float(known.get("step", 0.0)), sharded)
        state["trunk"] = found
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
    mine = _trained(backbone)
    starts = _starts({name: local(p.detach()).numel() for name, p in mine.items()}, is_sharded(backbone))
    fused = {id(p): bool(g.get("fused")) for g in optimizers[1].param_groups for p in g["params"]}
    for name, parameter in mine.items():
        saved = state["trunk"][name]
        _fill(parameter.detach(), saved["weight"], starts[name])
        if "exp_avg" not in saved:
            continue
        where = parameter.device if fused[id(parameter)] else torch.device("cpu")
        moments = {key: torch.zeros_like(parameter.detach()) for key in _MOMENTS}
        for key, value in moments.items():
            _fill(value, saved[key], starts[name])
        step = torch.tensor(saved["step"], dtype=torch.float32, device=where)
        optimizers[1].state[parameter] = {"step": step, **moments}


def _trained(backbone: nn.Module) -> dict[str, nn.Parameter]:
    return {plain_name(name): p for name, p in backbone.named_parameters() if p.requires_grad}


def _joined(own: dict[str, Tensor], step: float, sharded: bool) -> dict[str, Any]:
    """Join the pieces of all ranks on the first; a rank without a piece of a parameter has no state for it."""
    if not sharded:
        return {"step": step, **own}
    ranks = gather_objects((own, step))
    keys = {key for parts, _ in ranks for key in parts}
    whole = {key: torch.cat([parts[key] for parts, _ in ranks if key in parts]) for key in sorted(keys)}
    return {"step": max((s for _, s in ranks), default=0.0), **whole}


def _starts(sizes: dict[str, int], sharded: bool) -> dict[str, int]:
    """Return the offset of this rank's piece in each flattened parameter."""
    if not sharded:
        return dict.fromkeys(sizes, 0)
    before = all_gather_objects(sizes)[: rank_and_world()[0]]
    return {name: sum(other[name] for other in before) for name in sizes}


def _fill(target: Tensor, whole: Tensor, start: int) -> None:
    piece = local(target)
    piece.copy_(whole[start : start + piece.numel()].view(piece.shape))


def _cpu(state: Any) -> Any:
    """Return a copy whose tensors are on the CPU."""
    if isinstance(state, Tensor):
        return state.detach().cpu().clone()
    if isinstance(state, dict):
        return {key: _cpu(value) for key, value in state.items()}
    return [_cpu(value) for value in state] if isinstance(state, list) else state
