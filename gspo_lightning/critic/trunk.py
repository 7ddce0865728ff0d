"""The model under the value head: hidden states from the same packed layout as the policy's log-probabilities."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor, nn

from gspo_lightning.errors import UserError
from gspo_lightning.policy.checks import check_head, choose_layout
from gspo_lightning.policy.loading import context_length, load_policy
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.settings import ModelSettings
from gspo_lightning.policy.vision.sight import check_same_tokens
from gspo_lightning.types import MicroBatch

__all__ = ["Trunk", "another_trunk", "copied_trunk"]


class Trunk(nn.Module):
    """A policy's model without its output head, to be called like any module (FSDP gathers around that call)."""

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self.policy = policy

    def forward(self, batch: MicroBatch) -> tuple[Tensor, Tensor, Tensor]:
        """The hidden states [M, D] that the M response tokens are predicted from, and their rows and steps [M]."""
        found = self.policy.states(batch)
        return found.hidden, found.rows, found.steps


def copied_trunk(policy: Policy, *, own_frozen: bool) -> Trunk:
    """A copy of the policy as it is now, trained where the policy is, without the output head.

    Args:
        policy: whole.
        own_frozen: also copy weights that are never trained (the base under adapters): sharding takes a weight away
            from whoever else has it.
    """
    memo: dict[int, nn.Module | nn.Parameter] = {id(policy.model.get_output_embeddings()): nn.Identity()}
    if own_frozen:
        memo |= {id(p): nn.Parameter(p.detach().clone(), False) for p in policy.model.parameters()}
    twin = policy.frozen_copy(memo)
    twin.routing = None
    trained = {name for name, p in policy.model.named_parameters() if p.requires_grad}
    for name, parameter in twin.model.named_parameters():
        parameter.requires_grad_(name in trained)
    return Trunk(twin.train())


def another_trunk(
    settings: ModelSettings, policy: Policy, *, longest: int, device: torch.device, dtype: torch.dtype | None
) -> Trunk:
    """Another model with the policy's tokens.

    Args:
        settings: of the other model.
        policy: whose tokens it reads.
        longest: tokens that a row may have.
        device: that will train.
        dtype: of autocast in training; None: there is none.

    Raises:
        UserError: it cannot be loaded, or it would read other tokens or fewer of them.
    """
    name = settings.name_or_path
    context = context_length(settings)
    if context is not None and context < longest:
        raise UserError(
            "model.critic.name_or_path",
            f"{name} was built for {context} tokens, but a row may have {longest}",
            fix="use a model with a longer context, or lower data.max_response_tokens",
        )
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
    return Trunk(other.train())


def critic_settings(settings: ModelSettings, name: str) -> ModelSettings:
    """How another model is loaded: like the policy, but from its own place and without changes to its config."""
    return dataclasses.replace(settings, name_or_path=name, revision=None, config_overrides={})
