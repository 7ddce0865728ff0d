"""The old policy: the frozen snapshot that samples *and* that the ratio divides by, behind one interface.

The forms differ in memory, not in numbers: in float32 they give bit-identical training.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from gspo_lightning.errors import UserError
from gspo_lightning.old_policy.base import UNPREPARED, OldPolicy
from gspo_lightning.old_policy.recompute import with_logprobs
from gspo_lightning.policy.policy import Policy
from gspo_lightning.strategies.sharding import copy_weights, is_sharded
from gspo_lightning.types import MicroBatch, MiniBatch

__all__ = ["CachedLogProbs", "OffloadedSnapshot", "ResidentSnapshot"]


class CachedLogProbs(OldPolicy):
    """The snapshot evaluated once, right after sampling, in the training layout; no second model in memory.

    Only the log-probabilities of the rollouts are kept, so the snapshot cannot outlive one iteration.
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
        """The live policy: at sampling time it is the snapshot."""
        return policy

    def refresh(self, policy: Policy, iteration: int) -> None:
        """Nothing to copy."""

    def prepare(self, policy: Policy, batches: Sequence[MiniBatch], temperature: float) -> list[MiniBatch]:
        """Evaluate every micro-batch with the weights that sampled it."""
        return with_logprobs("old_logprobs", policy, batches, temperature)

    def evaluate(self, batch: MicroBatch, temperature: float) -> Tensor:
        """Too late: the weights have changed."""
        raise ValueError(UNPREPARED)


class ResidentSnapshot(OldPolicy):
    """A second, frozen copy of the weights on the same device; allows ``refresh_every`` above 1."""

    snapshot: Policy

    def _copy(self, policy: Policy) -> None:
        if "snapshot" not in self._modules:
            self.snapshot = policy.frozen_copy().train(policy.training)
            return
        copy_weights(policy, self.snapshot)

    def sampling_policy(self, policy: Policy) -> Policy:
        """The snapshot."""
        return self.snapshot

    def refresh(self, policy: Policy, iteration: int) -> None:
        """Copy the weights when due (or when there is no snapshot yet)."""
        if self.due(iteration) or "snapshot" not in self._modules:
            self._copy(policy)

    def prepare(self, policy: Policy, batches: Sequence[MiniBatch], temperature: float) -> list[MiniBatch]:
        """Nothing to cache: the snapshot is evaluated micro-batch by micro-batch. Its routes are needed before."""
        if policy.routing is None or policy.routing.replay != "R2":
            return list(batches)
        filled = with_logprobs("old_logprobs", self.snapshot, batches, temperature)
        return [replace(b, micro_batches=[replace(p, old_logprobs=None) for p in b.micro_batches]) for b in filled]

    @torch.no_grad()
    def evaluate(self, batch: MicroBatch, temperature: float) -> Tensor:
        """A forward of the snapshot through the same path as the policy's."""
        logprobs: Tensor = self.snapshot(batch, temperature)[0]
        return logprobs

    def shard(self, policy: Policy, shard: Callable[..., Policy]) -> None:
        """The snapshot is spread over ranks like the policy, frozen weights under adapters included."""
        self.snapshot = shard(self._own_copy(policy))

    def _own_copy(self, policy: Policy) -> Policy:
        """Nothing is shared with the policy: sharding takes a weight away from whoever else has it."""
        own: dict[int, Any] = {id(p): nn.Parameter(p.detach().clone(), False) for p in policy.model.parameters()}
        return policy.frozen_copy(own).train(policy.training)

    def materialise(self, policy: Policy) -> None:
        """Make room for a snapshot, which a checkpoint may be about to fill."""
        if "snapshot" not in self._modules:
            self._copy(policy)


class OffloadedSnapshot(ResidentSnapshot):
    """A second, frozen copy of the weights in the machine's memory; on the device only while it samples.

    Its log-probabilities are kept from then on, as those of :class:`CachedLogProbs`. Allows ``refresh_every`` above 1.
    """

    def shard(self, policy: Policy, shard: Callable[..., Policy]) -> None:
        """Every rank keeps its share of the snapshot in the main memory; layers visit the device while they compute."""
        self.snapshot = shard(self._own_copy(policy), offload=True)

    def sampling_policy(self, policy: Policy) -> Policy:
        """The snapshot, on the policy's device."""
        self._move(policy, policy.device)
        return self.snapshot

    def prepare(self, policy: Policy, batches: Sequence[MiniBatch], temperature: float) -> list[MiniBatch]:
        """Evaluate every micro-batch with the snapshot, then let go of the device's memory."""
        self._move(policy, policy.device)
        found = with_logprobs("old_logprobs", self.snapshot, batches, temperature)
        self._move(policy, torch.device("cpu"))
        return found

    def evaluate(self, batch: MicroBatch, temperature: float) -> Tensor:
        """Too late: the snapshot has left the device."""
        raise ValueError(UNPREPARED)

    def _move(self, policy: Policy, device: torch.device) -> None:
        """What the snapshot shares with the policy (weights under adapters) stays where it is; so do shards."""
        if is_sharded(self.snapshot):
            return
        shared = {id(p) for p in policy.parameters()}
        for tensor in (*self.snapshot.parameters(), *self.snapshot.buffers()):
            if id(tensor) not in shared:
                tensor.data = tensor.data.to(device)
