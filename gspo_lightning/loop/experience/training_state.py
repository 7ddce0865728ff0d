"""Training state: the part of ``gspo fit``'s module or of :class:`GSPOTrainer` that an iteration needs."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

from gspo_lightning.loop.critic import ValueModel
from gspo_lightning.loop.old_policy.logprobs import OldLogProbs
from gspo_lightning.loop.old_policy.old_policy import OldPolicy
from gspo_lightning.loop.old_policy.reference import ReferencePolicy
from gspo_lightning.loop.old_policy.teacher import Teacher
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.strategies.sharding import is_sharded


class TrainingState(Protocol):
    """A policy with its old policy, and the state of training."""

    policy: Policy
    every_row_learns: bool
    """True if rows without an advantage have a gradient, too."""
    old_policy: OldPolicy
    old_logprobs: OldLogProbs
    reference: ReferencePolicy | None
    """Frozen initial policy of the run, if a KL term needs it."""
    teacher: Teacher | None
    """Teacher for on-policy distillation."""
    critic: ValueModel | None
    """Critic that learns the values of states, if the advantages need it."""

    @property
    def device(self) -> torch.device:
        """Device of the policy."""

    @property
    def version(self) -> int:
        """Optimizer steps taken so far."""

    @property
    def lr_factor(self) -> float:
        """The policy's present learning rate as a share of the configured one, following its schedule."""

    @property
    def iterations(self) -> int | None:
        """Number of iterations of the run, None if unknown."""

    def forward_context(self) -> AbstractContextManager[Any]:
        """Return a context for forward passes outside a training step (autocast)."""


def marks_rows(state: TrainingState) -> bool:
    """True if rows without an advantage are computed without a graph.

    Ranks would differ in such rows, and so in forward passes, for which shards and context parallelism wait. Routes are
    recorded once a pass; whether they are does not change training, so no mixture of experts is among these models.
    """
    policy = state.policy
    waits = is_sharded(policy) or policy.context is not None
    experts = getattr(policy.model.config.get_text_config(), "num_experts_per_tok", None)
    return not waits and not state.every_row_learns and experts is None and policy.routing is None
