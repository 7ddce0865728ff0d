"""Find the routers of a model by what they compute, not by their names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from gspo_lightning.policy.routing.tape import TOP_K

__all__ = ["Router", "find_routers"]

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
            module, experts = self.stack[-1], int(scores.shape[-1])
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
