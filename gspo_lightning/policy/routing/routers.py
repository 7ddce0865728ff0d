"""Find the routers of a model by what they compute, not by their names, and hook them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from gspo_lightning.core.errors import UserError
from gspo_lightning.policy.routing.router_recording import TOP_K, ChoiceHooks
from gspo_lightning.policy.routing.routing import Replay, Routing

PROBE_TOKENS = 7


@dataclass(frozen=True, slots=True)
class Router:
    """Router module: its ``call``-th ``topk`` (from 0) chooses ``top_k`` of ``experts`` for every token."""

    module: nn.Module
    call: int
    experts: int
    top_k: int


@torch.no_grad()
def find_routers(backbone: nn.Module) -> list[Router]:
    """Return the modules that choose experts, in the order of a forward pass.

    Runs a few tokens through the model. A router is the innermost module that calls ``topk`` over as many scores per
    token as some module of the model has experts. If it calls ``topk`` several times (groups first), the last counts.

    Args:
        backbone: a transformers model without its head, called with ``input_ids``.
    """
    counts = set(_expert_counts(backbone))
    if not counts:
        return []
    device = next(backbone.parameters()).device
    spy = _Spy(counts)
    with _inside(backbone, spy.stack), spy:
        backbone(input_ids=torch.arange(PROBE_TOKENS, device=device).unsqueeze(0), use_cache=False)
    return list(spy.found.values())


def _expert_counts(model: nn.Module) -> Iterator[int]:
    """Yield possible numbers of experts: slices of 3-dimensional weights, and lengths of module lists."""
    for module in model.modules():
        if isinstance(module, nn.ModuleList) and len(module) > 1:
            yield len(module)
        yield from (p.shape[0] for p in module.parameters(recurse=False) if p.dim() == 3 and p.shape[0] > 1)


class _Spy(TorchFunctionMode):
    """Function mode that records, per innermost module, the last ``topk`` over scores that may be experts."""

    def __init__(self, counts: set[int]) -> None:
        super().__init__()
        self.counts = counts
        self.stack: list[nn.Module] = []
        self.calls: dict[int, int] = {}
        self.found: dict[int, Router] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if func in TOP_K and self.stack:
            scores: Tensor = args[0] if args else (kwargs or {})["input"]
            module = self.stack[-1]
            experts = int(scores.shape[-1])
            call = self.calls.get(id(module), 0)
            self.calls[id(module)] = call + 1
            if experts in self.counts and scores.numel() == PROBE_TOKENS * experts:
                self.found[id(module)] = Router(module, call, experts, int(out.indices.shape[-1]))
        return out


@contextmanager
def _inside(model: nn.Module, stack: list[nn.Module]) -> Iterator[None]:
    """Keep the modules whose forward is running on ``stack``."""
    handles = []
    for module in model.modules():
        handles.append(module.register_forward_pre_hook(lambda m, args: stack.append(m)))
        handles.append(module.register_forward_hook(lambda m, args, out: (stack.pop(), None)[1]))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def hook_routers(backbone: nn.Module, replay: Replay = "off") -> Routing | None:
    """Hook the routers of a model; return None if it has none.

    Raises:
        UserError: layers differ in their numbers of experts.
    """
    routers = find_routers(backbone)
    if not routers:
        return None
    shapes = {(router.experts, router.top_k) for router in routers}
    if len(shapes) > 1:
        raise UserError(
            "model.name_or_path",
            f"{type(backbone).__name__} has layers with different (experts, experts per token): {sorted(shapes)}",
            fix="use model.router_metrics: false and model.routing_replay: off",
        )
    for layer, router in enumerate(routers):
        hooks = ChoiceHooks(layer, router.call)
        router.module.register_forward_pre_hook(hooks.before)
        router.module.register_forward_hook(hooks.after, always_call=True)
    [(experts, top_k)] = shapes
    return Routing(len(routers), experts, top_k, replay)


def routers_of(backbone: nn.Module, replay: Replay, metrics: bool | None, aux_loss_coef: float = 0.0) -> Routing | None:
    """Hook the routers of a model if they are replayed, measured or balanced; otherwise return None.

    Args:
        backbone: a transformers model without its head.
        replay: Routing Replay.
        metrics: True to measure; None: only if the model has routers.
        aux_loss_coef: weight of their load-balancing loss.

    Raises:
        UserError: the coefficient is negative, or the model has no routers but they are to be replayed, balanced, or
            measured (``metrics`` is True).
    """
    if not 0 <= aux_loss_coef < float("inf"):
        raise UserError("model.router_aux_loss_coef", f"is {aux_loss_coef}; it must be 0 or above")
    reasons: dict[str, object] = {}  # settings that need routers, with their values
    if replay != "off":
        reasons["model.routing_replay"] = replay
    if aux_loss_coef > 0:
        reasons["model.router_aux_loss_coef"] = aux_loss_coef
    if metrics:
        reasons["model.router_metrics"] = "true"
    if not reasons and metrics is False:
        return None
    routing = hook_routers(backbone, replay)
    if routing is None and reasons:
        field, value = next(iter(reasons.items()))
        raise UserError(
            field,
            f"is {value}, but {type(backbone).__name__} has no routers: nothing in it chooses among experts",
            fix=f"leave {field} out, or use a mixture of experts such as tiny-qwen3-moe",
        )
    return routing
