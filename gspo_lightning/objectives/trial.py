"""Try an objective before a run depends on it."""

from __future__ import annotations

import copy
from dataclasses import fields

import torch
from torch import Tensor

from gspo_lightning.objectives.inputs import LossInputs, Rows
from gspo_lightning.objectives.objective import Objective
from gspo_lightning.objectives.shapes import check_count, check_term


def try_objective(objective: Objective) -> None:
    """Call an objective on two responses, of three tokens and of one, with every input that it may need.

    Raises:
        UserError: its result cannot be trained with.
    """
    inputs = _inputs(torch.tensor([1.0, -1.0]), 1e-4)
    check_count(objective, objective.count(inputs.response_mask))
    with torch.enable_grad():
        rows = Rows.of(inputs)
        check_term(objective, objective.term(rows), rows)


def learns_without_advantage(objective: Objective) -> bool:
    """True if a response whose advantage is 0 has a gradient, because of a KL term, a teacher or an entropy bonus.

    >>> from gspo_lightning.objectives import GRPO, GSPO
    >>> learns_without_advantage(GSPO()), learns_without_advantage(GRPO(kl_coef=0.04))
    (False, True)
    """
    tried = copy.deepcopy(objective)  # one that counts its calls begins at 0
    with torch.enable_grad():
        for log_ratio in (1e-4, -0.1, 2.0):
            inputs = _inputs(torch.zeros(2), log_ratio)
            values = (getattr(inputs, field.name) for field in fields(inputs))
            leaves = [value for value in values if isinstance(value, Tensor) and value.requires_grad]
            gradients = torch.autograd.grad(tried.total(Rows.of(inputs)).loss, leaves, allow_unused=True)
            if any(gradient is not None and bool(gradient.any()) for gradient in gradients):
                return True
    return False


def _inputs(advantages: Tensor, log_ratio: float) -> LossInputs:
    """Return two responses, the first of them correct, of a policy that differs from every other by ``log_ratio``."""
    mask = torch.tensor([[True, True, True], [True, False, False]])
    old = torch.tensor([[-1.0, -2.0, -0.5], [-1.5, 0.0, 0.0]])
    return LossInputs(
        (old + log_ratio * mask).requires_grad_(),
        old,
        advantages,
        mask,
        ref_logprobs=old,
        teacher_logprobs=old,
        teacher_kl=(0.0 * old).requires_grad_(),
        behaviour_logprobs=old,
        entropy=(-old).requires_grad_(),
        positive=torch.tensor([True, False]),
        segments=torch.tensor([[0, 0, 1], [0, 0, 0]]),
    )
