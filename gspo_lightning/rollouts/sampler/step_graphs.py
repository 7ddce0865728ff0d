"""Decode steps as CUDA graphs: the kernels of a step are launched by the device, and no longer one by one by the host.

A step of few rows is bounded by its launches: 64 rows of a 1.7B model take 23 ms on an H100, most of them waiting for
the host. A graph needs shapes that stay the same, so the places of a row are rounded up to whole :data:`PAGE` s, the
unseen ones are masked, and the place of the new token is a number on the device. A graph serves until rows leave or
join, or until a page is full.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

import torch
from torch import Tensor, nn

from gspo_lightning.core.errors import first_line
from gspo_lightning.policy.attention import GroupCache
from gspo_lightning.policy.packing.memory import is_out_of_memory
from gspo_lightning.policy.policy import Policy

log = logging.getLogger(__name__)

PAGE = 128
"""Places of a row are a multiple of it: a new graph, which takes as long as an ordinary step, is needed as rarely."""
PATIENCE = 1
"""Ordinary steps after rows have changed; what is made at first use must not become a part of a graph."""

Step = Callable[[Tensor, Tensor], Tensor]


class Capture(Protocol):
    """A function whose kernels were recorded: a replay reads the same memory and writes the same result."""

    def __init__(self, function: Callable[[], Tensor]) -> None: ...

    @property
    def result(self) -> Tensor:
        """The result of the last replay, which the next one overwrites."""

    def replay(self) -> None:
        """Do all of it again."""


class _CudaCapture:
    """A CUDA graph. Other threads may use the device meanwhile."""

    _own = threading.local()
    """Stream of a thread's captures: what libraries allocate for a stream is allocated once, outside of them."""

    def __init__(self, function: Callable[[], Tensor]) -> None:
        here = torch.cuda.current_stream()
        streams = vars(self._own).setdefault("streams", {})
        fresh = here.device not in streams
        stream = streams.setdefault(here.device, torch.cuda.Stream() if fresh else None)
        stream.wait_stream(here)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(stream):
            if fresh:
                function()
            self._graph.capture_begin(capture_error_mode="thread_local")
            try:
                self.result = function()
            except BaseException:
                with suppress(RuntimeError):  # it says only that the capture has failed
                    self._graph.capture_end()
                raise
            self._graph.capture_end()
        here.wait_stream(stream)

    def replay(self) -> None:
        self._graph.replay()


CAPTURES: dict[str, type[Capture]] = {"cuda": _CudaCapture}
"""How steps are recorded, by device type; on other devices they are not."""


class StepGraphs:
    """Decode steps of a cache, recorded and replayed.

    Args:
        policy: the weights, whose memory must not move.
        cache: rows are added and removed from outside.
        tolerance: mean difference of log-probabilities (nats) between a replay and an ordinary step.
    """

    def __init__(self, policy: Policy, cache: GroupCache, tolerance: float) -> None:
        self.policy, self.cache, self._tolerance = policy, cache, tolerance
        self._rows: object = None
        self._waited = 0
        self._captured: Capture | None = None
        self._tokens = self._positions = torch.empty(0)

    @classmethod
    def of(cls, policy: Policy, cache: GroupCache, tolerance: float) -> StepGraphs | None:
        """Return None where steps cannot be recorded: on a CPU, with sharded weights or hooks of a user."""
        able = policy.device.type in CAPTURES and not policy.in_lockstep and policy.decoding.graphs is not False
        return cls(policy, cache, tolerance) if able and not _watched(policy.backbone) else None

    def step(self, step: Step, tokens: Tensor, positions: Tensor) -> Tensor | None:
        """Return the logits [R, V] of a replayed step, valid until the next one; None: take an ordinary step.

        Args:
            step: logits of tokens [R] at positions [R], after a ``write`` of the cache; its owner may own this, too, so
                it is not kept: memory of a cycle would be freed late.
            tokens: [R].
            positions: [R].
        """
        rows = self.cache.arrangement
        if rows != self._rows:
            self._rows, self._waited, self._captured = rows, 0, None
        self._waited += 1
        if rows is None or self._waited <= PATIENCE or self.policy.decoding.graphs is False:
            return None
        if self._captured is None or not self.cache.room:
            self._captured = None  # its memory is free for the next one
            if not self._capture(step, tokens, positions):
                return None
        assert self._captured is not None
        self._tokens.copy_(tokens)
        self._positions.copy_(positions)
        self.cache.tick()
        self._captured.replay()
        return self._captured.result

    def _capture(self, step: Step, tokens: Tensor, positions: Tensor) -> bool:
        """Record a step for the next page; the first one of a policy is compared with an ordinary step."""

        def run() -> Tensor:
            self.cache.write_static()
            return step(self._tokens, self._positions)

        try:
            wanted = None if self.policy.decoding.graphs else self._ordinary(step, tokens, positions)
            self.cache.reserve(PAGE)
            self._tokens, self._positions = tokens.clone(), positions.clone()
            self._captured = CAPTURES[self.policy.device.type](run)
            if wanted is not None:
                self._captured.replay()
                gap = float((self._captured.result.log_softmax(-1) - wanted).abs().mean())
                if not gap <= self._tolerance:
                    raise ValueError(f"log-probabilities of a replayed step are off by {gap:.2g} nats")
        except (RuntimeError, ValueError) as error:  # known by name only
            if is_out_of_memory(error):
                raise
            log.warning("decoding %s without CUDA graphs: %s", type(self.policy.model).__name__, first_line(error))
            self._captured, self.policy.decoding.graphs = None, False
            return False
        self.policy.decoding.graphs = True
        return True

    def _ordinary(self, step: Step, tokens: Tensor, positions: Tensor) -> Tensor:
        """Return log-probabilities [R, V] of an ordinary step, which may be repeated."""
        self.cache.write()
        self.cache.longest -= 1
        return step(tokens, positions).log_softmax(-1)


def _watched(backbone: nn.Module) -> bool:
    """True if a module has hooks of somebody else, which a replay would not call."""
    hooks = [
        hook
        for module in backbone.modules()
        for hook in (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
    ]
    return any(not getattr(hook, "__module__", "").startswith("gspo_lightning.") for hook in hooks)
