"""A critic in a checkpoint: whole tensors under the names of the model, whatever number of ranks wrote them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

__all__ = ["read_state", "written_state"]

_WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True, ignore_frozen_params=True)
_READ = StateDictOptions(full_state_dict=True, ignore_frozen_params=True, strict=False)


def written_state(
    trunk: nn.Module | None, head: nn.Linear, optimizers: Sequence[torch.optim.Optimizer]
) -> dict[str, Any]:
    """Tensors and primitives only. Of a sharded trunk on the first rank only; a collective then.

    Args:
        trunk: with the parameters of the second optimizer; None where only the head is trained.
        head: with those of the first.
        optimizers: one or two.
    """
    state: dict[str, Any] = {"head": _cpu(head.state_dict()), "head_optimizer": _cpu(optimizers[0].state_dict())}
    if trunk is not None:
        state["trunk"] = get_model_state_dict(trunk, options=_WHOLE)
        begun = bool(optimizers[1].state)  # without any state, torch would make up a first step
        state["trunk_optimizer"] = get_optimizer_state_dict(trunk, optimizers[1], options=_WHOLE) if begun else None
    return state


def read_state(
    state: dict[str, Any], trunk: nn.Module | None, head: nn.Linear, optimizers: Sequence[torch.optim.Optimizer]
) -> None:
    """The inverse of :func:`written_state`; every rank has the whole state. The learning rate stays this run's."""
    settings = [[(g["lr"], g["betas"]) for g in optimizer.param_groups] for optimizer in optimizers]
    head.load_state_dict(state["head"])
    optimizers[0].load_state_dict(state["head_optimizer"])
    if trunk is not None:
        set_model_state_dict(trunk, state["trunk"], options=_READ)
        if state["trunk_optimizer"] is not None:
            set_optimizer_state_dict(trunk, optimizers[1], state["trunk_optimizer"], options=_READ)
    for optimizer, own in zip(optimizers, settings, strict=True):
        for group, (lr, betas) in zip(optimizer.param_groups, own, strict=True):
            group["lr"], group["betas"] = lr, betas


def _cpu(state: Any) -> Any:
    """The same, its tensors copied to the CPU."""
    if isinstance(state, torch.Tensor):
        return state.detach().cpu().clone()
    if isinstance(state, dict):
        return {key: _cpu(value) for key, value in state.items()}
    return [_cpu(value) for value in state] if isinstance(state, list) else state
