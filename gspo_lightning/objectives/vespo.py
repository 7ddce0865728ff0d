"""VESPO: the plain sequence likelihood ratio, with a smooth weight."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from gspo_lightning.core.errors import check_number
from gspo_lightning.objectives.aggregate import Aggregation
from gspo_lightning.objectives.inputs import LOG_RATIO_LIMIT, Rows, clamp_log_ratio
from gspo_lightning.objectives.measure import Term
from gspo_lightning.objectives.objective import Objective


@dataclass(repr=False)
class VESPO(Objective):
    """Sequence likelihood ratio (no length normalisation) through a gamma-shaped weight on the log-probability.

    ``J = sum_it sg[phi(w_i)] A_i log pi(y_it) / sum_i n_i`` with ``w_i = exp(sum_t d_it)`` and
    ``phi(w) = w^k exp(lambda (1 - w))``, d the log-ratio: arXiv 2602.10693. ``phi(1) = 1``; far from 1 it vanishes, so
    nothing is clipped. Only the gradient of the loss has a meaning, not its value.

    We differ in: the log-ratio is clamped to +-20 nats, as everywhere in this package.

    Args:
        k_pos: power of the weight if the advantage is not negative, >= 0; 2 in the paper.
        lambda_pos: decay of the weight if the advantage is not negative, >= 0; 3 in the paper.
        k_neg: power of the weight if the advantage is negative, >= 0; 3 in the paper.
        lambda_neg: decay of the weight if the advantage is negative, >= 0; 2 in the paper.
    """

    k_pos: float = 2.0
    lambda_pos: float = 3.0
    k_neg: float = 3.0
    lambda_neg: float = 2.0

    level = "sequence"
    aggregation = Aggregation.TOKEN_MEAN
    per_token_advantages: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("k_pos", "lambda_pos", "k_neg", "lambda_neg"):
            check_number(name, getattr(self, name), low=0.0)

    def term(self, rows: Rows) -> Term:
        """Weigh log-probabilities by advantage and by a smooth function of the sequence ratio."""
        log_ratio = rows.log_ratio.detach().sum(dim=-1)
        log_w = clamp_log_ratio(log_ratio)
        ratio = torch.exp(log_w)
        negative = rows.advantages < 0
        k = torch.where(negative, self.k_neg, torch.full_like(ratio, self.k_pos))
        decay = torch.where(negative, self.lambda_neg, torch.full_like(ratio, self.lambda_pos))
        phi = torch.exp(decay + k * log_w - decay * ratio)  # w^k exp(lambda (1 - w)), in logs: w^k may overflow
        return Term(
            loss=-(phi * rows.advantages).unsqueeze(-1) * rows.logprobs,
            ratio=ratio,
            clamped=log_ratio.abs() > LOG_RATIO_LIMIT,
        )
