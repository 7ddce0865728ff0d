"""REINFORCE: no ratio, no clip."""

from dataclasses import dataclass
from typing import Literal, get_args

import torch

from gspo_lightning.core.errors import check_choice
from gspo_lightning.objectives.aggregate import Aggregation
from gspo_lightning.objectives.inputs import LOG_RATIO_LIMIT, Rows, clamp_log_ratio
from gspo_lightning.objectives.measure import Term
from gspo_lightning.objectives.objective import Objective

Reduction = Literal["sequence_sum", "sequence_mean", "token_mean"]


@dataclass(repr=False)
class REINFORCE(Objective):
    """Plain policy gradient: advantage times log-probability, no ratio, no clip.

    ``J = mean_i A_i sum_t log pi(y_it)``: Williams 1992; for language models arXiv 2402.14740, whose RLOO this is with
    ``LeaveOneOut`` advantages. Only the gradient of the loss has a meaning, not its value. The old policy enters the
    metrics only: with several mini-batches per rollout the gradient is biased and nothing bounds the update. Use one
    mini-batch, or ``correction``.

    We differ in: nothing with the defaults.

    Args:
        reduction: ``sequence_sum``: the sum over tokens, mean over sequences; the unbiased gradient of the expected
            reward. ``sequence_mean``: GSPO's and GRPO's weights. ``token_mean``: DAPO's weights.
    """

    reduction: Reduction = "sequence_sum"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("reduction", self.reduction, get_args(Reduction))
        self.aggregation = Aggregation(self.reduction)

    def term(self, rows: Rows) -> Term:
        """Weigh log-probabilities by advantages."""
        log_ratio = rows.log_ratio.detach()
        return Term(
            loss=-rows.token_advantages * rows.logprobs,
            ratio=torch.exp(clamp_log_ratio(log_ratio)),
            clamped=log_ratio.abs() > LOG_RATIO_LIMIT,
        )
