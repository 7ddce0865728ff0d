"""Record or prescribe the choices of routers in a forward pass.

A router decides with ``torch.topk`` over the scores of its experts. In a watched forward pass that one call is
intercepted: it is recorded, and under replay it returns the recorded experts with their *live* scores. The family's own
code still does everything before and after (softmax or sigmoid, normalisation, scaling), and the gradient. Replaying
the old policy's forward pass (R2) and the rollout's (R3, arXiv 2510.11370) are compared in arXiv 2512.01374.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from gspo_lightning.policy.routing.routing import Routing
from gspo_lightning.policy.routing.tokens import TokenPlaces

TOP_K = (torch.topk, Tensor.topk)


class RouterRecording:
    """Recorded choices of one forward pass over M tokens, layer by layer; filled in by the pass.

    ``chosen[layer]`` [M, k] int64 are the experts that live scores choose, even if others are prescribed;
    ``confidence[layer]`` [M] is the best expert's share of all scores. ``scores[layer]`` [M, E], with their gradient,
    are recorded on request. ``places`` identifies the tokens, if the policy made the pass.
    """

    def __init__(self, with_scores: bool = False) -> None:
        self.with_scores = with_scores
        self.scores: dict[int, Tensor] = {}
        self.chosen: dict[int, Tensor] = {}
        self.confidence: dict[int, Tensor] = {}
        self.places: TokenPlaces | None = None

    def stacked(self) -> Tensor:
        """Return the chosen experts [M, L, k] int64."""
        return torch.stack([self.chosen[layer] for layer in sorted(self.chosen)], dim=1)


class _Pass:
    """State of a forward pass: the prescribed experts of its tokens by layer ([M, k] each), and the recording."""

    def __init__(self, prescribed: Sequence[Tensor] | None, recording: RouterRecording | None) -> None:
        self.prescribed = prescribed
        self.recording = recording
        self.modes: list[TorchFunctionMode] = []

    def decide(self, layer: int, top_k: Callable[[], Any], scores: Tensor) -> Any:
        """Answer a router's ``topk`` over ``scores`` [..., E]."""
        if self.recording is not None:
            with torch.set_grad_enabled(torch.is_grad_enabled() and self.prescribed is None):
                live = top_k()  # under replay only recorded: checkpointing would not recompute its saved tensors
            self.recording.chosen[layer] = live.indices.detach().flatten(0, -2)
            if self.recording.with_scores:
                self.recording.scores[layer] = scores.flatten(0, -2)
            self.recording.confidence[layer] = _confidence(scores.detach().flatten(0, -2))
            if self.prescribed is None:
                return live
        if self.prescribed is None:
            return top_k()
        experts = self.prescribed[layer].to(torch.int64).view(*scores.shape[:-1], -1)
        return torch.return_types.topk((scores.gather(-1, experts), experts))


_wanted: ContextVar[RouterRecording | None] = ContextVar("wanted", default=None)
_active: ContextVar[_Pass | None] = ContextVar("active", default=None)


def _confidence(scores: Tensor) -> Tensor:
    """Return the largest share [M] in scores [M, E]: softmax for logits; positive scores as they are."""
    wide = scores.float()
    masked = wide.masked_fill(wide == -torch.inf, 0.0)  # -inf: groups that were ruled out
    shares = masked.amax(-1) / masked.sum(-1).clamp(min=torch.finfo(torch.float32).tiny)
    return torch.where((masked < 0).any(), torch.softmax(wide, dim=-1).amax(-1), shares)


@contextlib.contextmanager
def record_routers(routing: Routing | None, *, with_scores: bool = False) -> Iterator[RouterRecording | None]:
    """Yield the recording of the one forward pass of a policy inside the context; None without routing."""
    if routing is None:
        yield None
        return
    recording = RouterRecording(with_scores)
    token = _wanted.set(recording)
    try:
        yield recording
    finally:
        _wanted.reset(token)


@contextlib.contextmanager
def routed(places: TokenPlaces | None = None, prescribed: Sequence[Tensor] | None = None) -> Iterator[None]:
    """Watch the forward pass inside, if a recording is wanted or experts are prescribed (L tensors [M, k])."""
    recording = _wanted.get()
    if recording is None and prescribed is None:
        yield
        return
    if recording is not None:
        recording.places = places
    token = _active.set(_Pass(prescribed, recording))
    try:
        yield
    finally:
        _active.reset(token)


def checkpoint_contexts() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    """Return contexts of gradient checkpointing (its ``context_fn``): recomputation follows the prescribed experts."""
    active = _active.get()
    return contextlib.nullcontext(), _again(active.prescribed if active is not None else None)


@contextlib.contextmanager
def _again(prescribed: Sequence[Tensor] | None) -> Iterator[None]:
    token = _active.set(None if prescribed is None else _Pass(prescribed, None))
    try:
        yield
    finally:
        _active.reset(token)


class _Choice(TorchFunctionMode):
    """Function mode inside a router: the pass answers its ``call``-th ``topk``."""

    def __init__(self, active: _Pass, layer: int, call: int) -> None:
        super().__init__()
        self.active = active
        self.layer = layer
        self.call = call
        self.seen = 0

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        options = dict(kwargs or {})
        if func in TOP_K:
            self.seen += 1
            if self.seen - 1 == self.call:
                scores = args[0] if args else options["input"]
                return self.active.decide(self.layer, lambda: func(*args, **options), scores)
        return func(*args, **options)


class ChoiceHooks:
    """Pair of hooks on the router of a layer; idle while no forward pass is watched."""

    def __init__(self, layer: int, call: int) -> None:
        self.layer = layer
        self.call = call

    def before(self, module: nn.Module, args: Any) -> None:
        """Enter the function mode; forward pre-hook."""
        if (active := _active.get()) is not None:
            mode = _Choice(active, self.layer, self.call)
            mode.__enter__()  # type: ignore[no-untyped-call]
            active.modes.append(mode)

    def after(self, module: nn.Module, args: Any, output: Any) -> None:
        """Leave the function mode; forward hook, also called if the forward raises."""
        if (active := _active.get()) is not None and active.modes:
            active.modes.pop().__exit__(None, None, None)
