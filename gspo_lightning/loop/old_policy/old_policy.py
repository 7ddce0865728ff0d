"""Old policy: the frozen snapshot that samples rollouts and is the denominator of ratios."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.types import MicroBatch, MiniBatch
from gspo_lightning.policy.policy import Policy

UNPREPARED = "a micro-batch without old_logprobs reached training: prepare() was not called"


class OldPolicy(nn.Module):
    """Policy of the last refresh. ``refresh_every`` counts iterations (rollout batches)."""

    def __init__(self, refresh_every: int = 1) -> None:
        super().__init__()
        if refresh_every < 1:
            raise UserError("model.old_policy.refresh_every", f"is {refresh_every}; it must be at least 1")
        self.refresh_every = refresh_every

    @abstractmethod
    def sampling_policy(self, policy: Policy) -> Policy:
        """Return the policy whose weights sample rollouts."""

    @abstractmethod
    def refresh(self, policy: Policy, iteration: int) -> None:
        """Take a new snapshot if this iteration is due for one; called before each rollout."""

    @abstractmethod
    def prepare(self, policy: Policy, batches: Sequence[MiniBatch], temperature: float) -> list[MiniBatch]:
        """Prepare mini-batches that need old log-probabilities; called once per rollout, before its first update."""

    @abstractmethod
    def evaluate(self, batch: MicroBatch, temperature: float) -> Tensor:
        """Return the snapshot's log-probabilities [N, T] for a micro-batch that has none yet."""

    def logprobs(self, batch: MicroBatch, temperature: float, current: Tensor | None = None) -> Tensor:
        """Return old log-probabilities [N, T] of a micro-batch during training.

        Args:
            batch: N rows.
            temperature: sampling temperature of the responses.
            current: the policy's own log-probabilities [N, T]; pass them if no update has been made since the snapshot,
                because they are the old ones then.
        """
        if current is not None:
            old = current.detach()
        elif batch.old_from_source and batch.behaviour_logprobs is not None:
            return batch.behaviour_logprobs
        else:
            old = batch.old_logprobs if batch.old_logprobs is not None else self.evaluate(batch, temperature)
        if batch.stale is not None and batch.behaviour_logprobs is not None:
            old = torch.where(batch.stale, batch.behaviour_logprobs, old)
        return old

    def shard(self, policy: Policy, shard: Callable[..., Policy]) -> None:
        """Shard kept weights like the policy; called once, before the policy is sharded."""

    def due(self, iteration: int) -> bool:
        """True if a snapshot is taken before this iteration's rollout."""
        return iteration % self.refresh_every == 0
