"""CISPO: clip the importance weight, keep the gradient."""

from dataclasses import dataclass

import torch

from gspo_lightning.core.errors import check_number
from gspo_lightning.objectives.aggregate import Aggregation
from gspo_lightning.objectives.clip import Band
from gspo_lightning.objectives.inputs import LOG_RATIO_LIMIT, Rows, clamp_log_ratio
from gspo_lightning.objectives.measure import Term
from gspo_lightning.objectives.objective import Objective


@dataclass(repr=False)
class CISPO(Band, Objective):
    """Clipped token ratio as a constant weight on the log-probability; no token loses its gradient.

    ``J = sum_it sg[clip(r_it, 1 - low, 1 + high)] A_i log pi(y_it) / sum_i n_i``: MiniMax-M1, arXiv 2506.13585, Eq. 4
    and 5. Only the gradient of the loss has a meaning, not its value; ``clipped`` is False everywhere, ``outside_band``
    counts the clipped weights.

    We differ in: other implementations name the cap itself ``epsilon_high``; here the cap is 1 + clip_high, as
    everywhere else.

    Args:
        clip_low: the weight is at least 1 - clip_low, [0, 1]; 1 means no lower bound, as in the paper.
        clip_high: the weight is at most 1 + clip_high, >= 0; 4 gives ScaleRL's cap of 5 (arXiv 2510.13786), because the
            paper does not state its own.
    """

    clip_low: float = 1.0
    clip_high: float = 4.0

    aggregation = Aggregation.TOKEN_MEAN

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("clip_low", self.clip_low, low=0.0, high=1.0)
        check_number("clip_high", self.clip_high, low=0.0)

    def term(self, rows: Rows) -> Term:
        """Weigh log-probabilities by the clipped ratio, which has no gradient."""
        log_ratio = rows.log_ratio.detach()
        ratio = torch.exp(clamp_log_ratio(log_ratio))
        low = 1 - self.clip_low
        high = 1 + self.clip_high
        return Term(
            loss=-ratio.clamp(low, high) * rows.token_advantages * rows.logprobs,
            ratio=ratio,
            outside=(ratio < low) | (ratio > high),
            clamped=log_ratio.abs() > LOG_RATIO_LIMIT,
        )

    def unusual_clip(self) -> str | None:
        """Warn of an upper bound on the scale of a sequence ratio; any lower bound is usual."""
        if self.clip_high >= 1e-3:
            return None
        return (
            f"CISPO with clip_high={self.clip_high:g} caps the weight of half of all tokens: this is the scale of a "
            "sequence ratio; ScaleRL uses a cap of 5, clip_high=4 (arXiv 2510.13786)"
        )
