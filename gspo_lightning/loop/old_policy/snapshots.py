"""Old policies: cached log-probabilities, a snapshot on the device, or one in host memory.

They differ in memory, not in numbers: in float32 they give bit-identical training.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.types import MicroBatch, MiniBatch
from gspo_lightning.loop.old_policy.frozen import with_logprobs
from gspo_lightning.loop.old_policy.old_policy import UNPREPARED, OldPolicy
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.strategies.sharding import copy_weights, is_sharded


class CachedLogProbs(OldPolicy):
    """Snapshot evaluated once, right after sampling, in the training layout; no second model in memory.

    Keeps only the log-probabilities of the rollouts, so the snapshot cannot outlive one iteration.
    """

    def __init__(self, refresh_every: int = 1) -> None:
        super().__init__(refresh_every)
        if refresh_every != 1:
            raise UserError(
                "model.old_policy.refresh_every",
                f"is {refresh_every}, but CachedLogProbs keeps no weights to sample from again",
                fix="use model.old_policy: ResidentSnapshot, or refresh_every: 1",
            )

    def sampling_policy(self, policy: Policy) -> Policy:
        """Return the live policy, which is the snapshot while it samples."""
        return policy

    def refresh(self, policy: Policy, iteration: int) -> None:
        """Do nothing: no weights are kept."""

    def prepare(self, policy: Policy, batches: Sequence[MiniBatch], temperature: float) -> list[MiniBatch]:
        """Evaluate every micro-batch with the weights that sampled it."""
        return with_logprobs("old_logprobs", policy, batches, temperature)

    def evaluate(self, batch: MicroBatch, temperature: float) -> Tensor:
        """Refuse: the weights have changed since sampling."""
        raise ValueError(UNPREPARED)


class ResidentSnapshot(OldPolicy):
    """Second, frozen copy of the weights on the same device; allows ``refresh_every`` above 1."""

    snapshot: Policy

    def _copy(self, policy: Policy) -> None:
        if "snapshot" not in self._modules:
            self.snapshot = policy.frozen_copy().train(policy.training)
            return
        copy_weights(policy, self.snapshot)

    def sampling_policy(self, policy: Policy) -> Policy:
        """Return the snapshot."""
        return self.snapshot

    def refresh(self, policy: Policy, iteration: int) -> None:
        """Copy the weights if due, or if there is no snapshot yet."""
        if self.due(iteration) or "snapshot" not in self._modules:
            self._copy(policy)

    def prepare(self, policy: Policy, batches: Sequence[MiniBatch], temperature: float) -> list[MiniBatch]:
        """Add routes to the mini-batches (R2 only); :meth:`evaluate` computes log-probabilities later."""
        if policy.routing is None or policy.routing.replay != "R2":
            return list(batches)
        routed = with_logprobs("old_logprobs", self.snapshot, batches, temperature)
        return [_without_old_logprobs(batch) for batch in routed]

    @torch.no_grad()
    def evaluate(self, batch: MicroBatch, temperature: float) -> Tensor:
        """Return the snapshot's log-probabilities [N, T], computed like the policy's."""
        logprobs: Tensor = self.snapshot(batch, temperature)[0]
        return logprobs

    def shard(self, policy: Policy, shard: Callable[..., Policy]) -> None:
        """Shard the snapshot like the policy, including frozen weights under adapters."""
        self.snapshot = shard(self._full_copy(policy))

    def _full_copy(self, policy: Policy) -> Policy:
        """Copy every weight: sharding would take shared ones away from the policy."""
        memo: dict[int, Any] = {}
        for parameter in policy.model.parameters():
            memo[id(parameter)] = nn.Parameter(parameter.detach().clone(), requires_grad=False)
        return policy.frozen_copy(memo).train(policy.training)

    def materialise(self, policy: Policy) -> None:
        """Create the snapshot, so that a checkpoint can fill it."""
        if "snapshot" not in self._modules:
            self._copy(policy)


class OffloadedSnapshot(ResidentSnapshot):
    """Second, frozen copy of the weights in host memory; on the device only while it samples and is evaluated.

    Its log-probabilities are cached like those of :class:`CachedLogProbs`. Allows ``refresh_every`` above 1.
    """

    def shard(self, policy: Policy, shard: Callable[..., Policy]) -> None:
        """Shard the snapshot in host memory; layers visit the device while they compute."""
        self.snapshot = shard(self._full_copy(policy), offload=True)

    def sampling_policy(self, policy: Policy) -> Policy:
        """Move the snapshot to the policy's device and return it."""
        self._move(policy, policy.device)
        return self.snapshot

    def prepare(self, policy: Policy, batches: Sequence[MiniBatch], temperature: float) -> list[MiniBatch]:
        """Evaluate every micro-batch with the snapshot, then free the device's memory."""
        self._move(policy, policy.device)
        filled = with_logprobs("old_logprobs", self.snapshot, batches, temperature)
        self._move(policy, torch.device("cpu"))
        return filled

    def evaluate(self, batch: MicroBatch, temperature: float) -> Tensor:
        """Refuse: the snapshot has left the device."""
        raise ValueError(UNPREPARED)

    def _move(self, policy: Policy, device: torch.device) -> None:
        """Move the snapshot, except weights shared with the policy (the base under adapters) and shards."""
        if is_sharded(self.snapshot):
            return
        shared = {id(p) for p in policy.parameters()}
        for tensor in (*self.snapshot.parameters(), *self.snapshot.buffers()):
            if id(tensor) not in shared:
                tensor.data = tensor.data.to(device)


def _without_old_logprobs(batch: MiniBatch) -> MiniBatch:
    return replace(batch, micro_batches=[replace(part, old_logprobs=None) for part in batch.micro_batches])
