"""Decode steps as CUDA graphs: the kernels of a step are launched by the device, and no longer one by one by the host.

A step of few rows is bounded by its launches: 64 rows of a 1.7B model take 23 ms on an H100, most of them waiting for
the host. A graph needs shapes that stay the same, so the places of a row are rounded up to whole pages, the
unseen ones are masked, and the place of the new token is a number on the device. A graph serves until rows leave or
join, or until a page is full.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch
from torch import Tensor, nn

from gspo_lightning.core.errors import first_line
from gspo_lightning.policy.attention import GroupCache
from gspo_lightning.policy.kernels.rounding import distribution_gap
from gspo_lightning.policy.policy import Policy
from gspo_lightning.rollouts.sampler.memory import GRAPH_PAGE
from gspo_lightning.rollouts.sampler.recording import CAPTURES, Capture, memory_for, record

log = logging.getLogger(__name__)

PATIENCE = 1
"""Ordinary steps after rows have changed; what is made at first use must not become a part of a graph."""

Step = Callable[[Tensor, Tensor], Tensor]


class StepGraphs:
    """Decode steps of a cache, recorded and replayed.

    Args:
        policy: the weights, whose memory must not move.
        cache: rows are added and removed from outside.
        tolerance: returns the mean difference of log-probabilities (nats) between a replay and an ordinary step.
    """

    def __init__(self, policy: Policy, cache: GroupCache, tolerance: Callable[[], float]) -> None:
        self.policy, self.cache, self._tolerance = policy, cache, tolerance
        self._rows: object = None
        self._waited = 0
        self._failed = False
        self._captured: Capture | None = None
        self._memory = memory_for(self, policy.device)
        self._tokens = self._positions = torch.empty(0)

    @classmethod
    def of(cls, policy: Policy, cache: GroupCache, tolerance: Callable[[], float]) -> StepGraphs | None:
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
        if rows is None or self._waited <= PATIENCE or self._failed:
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
        """Record a step for the next page; the first one of a policy is compared with ordinary ones.

        If a recording fails, this cache goes on without; the next one tries again, unless a replay was wrong.
        """

        def run() -> Tensor:
            self.cache.write_static()
            return step(self._tokens, self._positions)

        vocabulary = self.policy.model.config.get_text_config().vocab_size
        inputs = [tokens, (tokens + 1) % vocabulary]  # a replay that does nothing has the result of the recording
        wanted = [] if self.policy.decoding.graphs else [self._ordinary(step, ids, positions) for ids in inputs]
        self.cache.reserve(GRAPH_PAGE)
        self._tokens, self._positions = tokens.clone(), positions.clone()
        try:
            self._captured = record(run, self._memory)
            for ids, theirs in zip(inputs, wanted, strict=bool(wanted)):
                self._tokens.copy_(ids)
                self._captured.replay()
                gap = distribution_gap(self._captured.result.log_softmax(-1), theirs)
                if not gap <= self._tolerance():
                    raise ValueError(f"log-probabilities of a replayed step are off by {gap:.2g} nats")
        except (RuntimeError, ValueError) as error:  # known by name only
            log.warning("decoding %s without CUDA graphs: %s", type(self.policy.model).__name__, first_line(error))
            self._captured, self._failed = None, True
            self.policy.decoding.failed_graphs += 1
            if isinstance(error, ValueError):
                self.policy.decoding.graphs = False
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
