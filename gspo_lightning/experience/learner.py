"""Who learns, as an iteration sees it: what it needs of the module of ``gspo fit`` or of :class:`GSPOTrainer`."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

from gspo_lightning.critic import ValueModel
from gspo_lightning.old_policy.base import OldPolicy
from gspo_lightning.old_policy.logprobs import OldLogProbs
from gspo_lightning.old_policy.reference import ReferencePolicy
from gspo_lightning.old_policy.teacher import Teacher
from gspo_lightning.policy.policy import Policy

__all__ = ["Learner"]


class Learner(Protocol):
    """A policy with its old policy, and where training stands."""

    policy: Policy
    old_policy: OldPolicy
    old_logprobs: OldLogProbs
    reference: ReferencePolicy | None
    """The frozen start of the run, where a KL term is measured to it."""
    teacher: Teacher | None
    """Of on-policy distillation."""
    critic: ValueModel | None
    """Learns what states are worth, where advantages need it."""

    @property
    def device(self) -> torch.device:
        """Of the policy."""

    @property
    def version(self) -> int:
        """Optimizer steps behind the weights of now."""

    @property
    def lr_factor(self) -> float:
        """The policy's learning rate now, as a share of the configured one: where its schedule stands."""

    @property
    def iterations(self) -> int | None:
        """That the run will have, if anybody knows."""

    def forward_context(self) -> AbstractContextManager[Any]:
        """Entered around forward passes outside a training step (autocast)."""
