"""Try a plug-in's objective before a run depends on it."""

from __future__ import annotations

import torch

from gspo_lightning.objectives.inputs import LossInputs, Rows
from gspo_lightning.objectives.objective import Objective
from gspo_lightning.objectives.shapes import check_count, check_term


def try_objective(objective: Objective) -> None:
    """Call an objective on two responses, of three tokens and of one, with every input that it may need.

    Raises:
        UserError: its result cannot be trained with.
    """
    mask = torch.tensor([[True, True, True], [True, False, False]])
    old = torch.tensor([[-1.0, -2.0, -0.5], [-1.5, 0.0, 0.0]])
    check_count(objective, objective.count(mask))
    with torch.enable_grad():
        inputs = LossInputs(
            (old + 1e-4 * mask).requires_grad_(),
            old,
            torch.tensor([1.0, -1.0]),
            mask,
            ref_logprobs=old,
            teacher_logprobs=old,
            teacher_kl=0.0 * old,
            behaviour_logprobs=old,
            entropy=-old,
            positive=torch.tensor([True, False]),
            segments=torch.tensor([[0, 0, 1], [0, 0, 0]]),
        )
        rows = Rows.of(inputs)
        check_term(objective, objective.term(rows), rows)
