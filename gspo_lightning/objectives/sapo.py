"""SAPO: a smooth gate instead of a clip."""

from dataclasses import dataclass

import torch

from gspo_lightning.core.errors import check_number
from gspo_lightning.objectives.inputs import LOG_RATIO_LIMIT, Rows, clamp_log_ratio
from gspo_lightning.objectives.measure import Term
from gspo_lightning.objectives.objective import Objective


@dataclass(repr=False)
class SAPO(Objective):
    """Token-level ratio through a sigmoid gate instead of a clip; mean over tokens, then over sequences.

    ``J = mean_i (1 / n_i) sum_t (4 / tau) sigmoid(tau (r_it - 1)) A_i``: arXiv 2511.20347, Eq. 5 and 6. At r = 1 the
    gradient is GRPO's; away from 1 it fades, faster for negative advantages. On-policy the loss is ``-2 A / tau``.

    We differ in: nothing.

    Args:
        tau_pos: steepness of the gate if the advantage is positive, > 0; 1.0 in the paper.
        tau_neg: steepness of the gate if the advantage is not positive, > 0; 1.05 in the paper.
    """

    tau_pos: float = 1.0
    tau_neg: float = 1.05

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("tau_pos", self.tau_pos, low=0.0, open_low=True)
        check_number("tau_neg", self.tau_neg, low=0.0, open_low=True)

    def term(self, rows: Rows) -> Term:
        """Weigh advantages by a soft gate around a ratio of 1."""
        clamped = rows.log_ratio.detach().abs() > LOG_RATIO_LIMIT
        ratio = torch.exp(clamp_log_ratio(rows.log_ratio))
        advantages = rows.token_advantages
        tau = torch.where(advantages > 0, self.tau_pos, torch.full_like(advantages, self.tau_neg))
        gate = torch.sigmoid(tau * (ratio - 1)) * (4 / tau)
        return Term(loss=-gate * advantages, ratio=ratio.detach(), clamped=clamped, flat=clamped)
