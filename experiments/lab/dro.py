"""A quadratic term in place of the clip: DRO (arXiv 2405.19107) with GSPO's length normalisation and advantages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from gspo_lightning.core.errors import check_number
from gspo_lightning.objectives import Objective, Rows, Term

__all__ = ["DRO"]


@dataclass(repr=False)
class DRO(Objective):
    """``J = mean_i (A_i log s_i - tau / 2 (log s_i)^2)``, ``log s_i`` the mean log-ratio over a sequence's tokens.

    The gradient ``(A_i - tau log s_i) grad log s_i`` is that of DRO's policy loss (arXiv 2405.19107), with the group's
    mean reward for its value function and the old policy for its reference. The step ends by itself where
    ``log s_i = A_i / tau``.

    Args:
        tau: > 0, per nat per token; 2500 lets an advantage of 1 move a sequence by GSPO's upper clip range, 4e-4.
    """

    tau: float = 2500.0

    level = "sequence"
    per_token_advantages: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("tau", self.tau, low=0.0, open_low=True)

    def term(self, rows: Rows) -> Term:
        """[N] losses and ratios."""
        log_ratio = rows.mean(rows.log_ratio)
        loss = -log_ratio * rows.advantages + self.tau / 2 * log_ratio.square()
        return Term(loss=loss, ratio=torch.exp(log_ratio).detach())
