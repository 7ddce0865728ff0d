"""Backbone of the critic: hidden states in the same packed layout as the policy's log-probabilities."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor, nn

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.types import MicroBatch
from gspo_lightning.policy.load.loading import context_length, load_policy
from gspo_lightning.policy.load.model_settings import ModelSettings
from gspo_lightning.policy.model_checks.checks import check_head, choose_layout
from gspo_lightning.policy.parallel.context_parallel import ContextGroup
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.vision.image_processor import check_same_tokens


class Backbone(nn.Module):
    """Policy model without its output head, called like any module (FSDP gathers around that call)."""

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self.policy = policy

    @property
    def context(self) -> ContextGroup | None:
        """Ranks that compute the same rows; None without context parallelism."""
        return self.policy.context

    def forward(self, batch: MicroBatch) -> tuple[Tensor, Tensor, Tensor, Callable[[Tensor], Tensor]]:
        """Return hidden states [M, D], from which M response tokens are predicted, and their rows and steps [M].

        The last is :attr:`gspo_lightning.policy.states.States.collect`.
        """
        states = self.policy.states(batch)
        return states.hidden, states.rows, states.steps, states.collect


def copied_backbone(policy: Policy, *, own_frozen: bool) -> Backbone:
    """Copy the policy as it is now, without the output head; the same weights are trained.

    Args:
        policy: whole (not sharded).
        own_frozen: also copy weights that are never trained (the base under adapters). Needed for sharding, which
            takes a weight away from every other module that holds it.
    """
    # a memo as of copy.deepcopy, which takes these instead of what it would copy
    memo: dict[int, nn.Module | nn.Parameter] = {id(policy.model.get_output_embeddings()): nn.Identity()}
    if own_frozen:
        for parameter in policy.model.parameters():
            memo[id(parameter)] = nn.Parameter(parameter.detach().clone(), requires_grad=False)
    critic = policy.frozen_copy(memo)
    critic.routing = None
    trained_names = {name for name, p in policy.model.named_parameters() if p.requires_grad}
    for name, parameter in critic.model.named_parameters():
        parameter.requires_grad_(name in trained_names)
    return Backbone(critic.train())


def another_backbone(
    settings: ModelSettings, policy: Policy, *, longest: int, device: torch.device, dtype: torch.dtype | None
) -> Backbone:
    """Load another model that has the policy's tokenizer.

    Args:
        settings: of the other model.
        policy: supplies the tokenizer to compare with.
        longest: largest number of tokens of a row.
        device: training device.
        dtype: autocast dtype in training; None: no autocast.

    Raises:
        UserError: the model cannot be loaded, has another vocabulary, or its context is shorter than ``longest``.
    """
    name = settings.name_or_path
    context = context_length(settings)
    if context is not None and context < longest:
        raise UserError(
            "model.critic.name_or_path",
            f"{name} was built for {context} tokens, but a row may have {longest}",
            fix="use a model with a longer context, or lower data.max_response_tokens",
        )
    with policy.device:
        other = load_policy(settings)
    if other.tokenizer.get_vocab() != policy.tokenizer.get_vocab():
        raise UserError(
            "model.critic.name_or_path",
            f"the vocabulary of {name} is not the policy's, so it would read other tokens than the policy wrote",
            fix="use a model of the same family, or null for a copy of the policy",
        )
    check_same_tokens(policy.tokenizer, other.tokenizer, "model.critic.name_or_path")
    check_head(other)
    choose_layout(other, settings.layout, longest, device, dtype)
    other.model.set_output_embeddings(nn.Identity())
    return Backbone(other.train())


def critic_settings(settings: ModelSettings, name: str) -> ModelSettings:
    """Return settings to load another model: the policy's, but for name, revision, overrides and fixed bits."""
    return dataclasses.replace(settings, name_or_path=name, revision=None, config_overrides={}, batch_invariant=False)
