"""Policy that gives log-probabilities and is never trained: the reference, or a teacher in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar

import torch

from gspo_lightning.old_policy.recompute import with_logprobs
from gspo_lightning.policy.policy import Policy
from gspo_lightning.strategies.sharding import is_sharded, unwrapped
from gspo_lightning.types import MiniBatch

__all__ = ["FrozenPolicy", "own_ways"]


class FrozenPolicy:
    """Frozen weights, evaluated by the same forward pass as the policy.

    It is not part of the module tree: neither the optimizer, nor DDP, nor a checkpoint, nor an export sees it. A
    resumed run makes it again from the same start.

    Args:
        policy: the weights; nothing else may hold them.
        shard: shards it over ranks, if the strategy shards the trained policy.
    """

    field: ClassVar[str]
    """Field of a micro-batch that :meth:`fill` computes."""

    def __init__(self, policy: Policy, shard: Callable[[Policy], Policy] | None = None) -> None:
        plain = policy.requires_grad_(False).eval()
        plain.routing = None  # neither replayed nor recorded
        self.policy: Policy = plain if shard is None else shard(plain)

    def fill(self, batches: Sequence[MiniBatch], temperature: float, device: torch.device) -> list[MiniBatch]:
        """Return the mini-batches with :attr:`field` [N, T], computed once per rollout batch in the training layout."""
        self._to(device)
        with self._as_it_was():
            return with_logprobs(self.field, self.policy, batches, temperature)

    @contextmanager
    def _as_it_was(self) -> Iterator[None]:
        with own_ways(self.policy):
            yield

    def _to(self, device: torch.device) -> None:
        if not is_sharded(self.policy):  # shards stay in place
            self.policy.to(device)


@contextmanager
def own_ways(policy: Policy) -> Iterator[None]:
    """Suspend replay and recording of a policy's routers."""
    inner = unwrapped(policy)
    routing, inner.routing = inner.routing, None
    try:
        yield
    finally:
        inner.routing = routing
