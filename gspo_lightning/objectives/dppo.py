"""DPPO: drop a token if its probability, not its ratio, has moved too far."""

from dataclasses import dataclass

import torch

from gspo_lightning.core.errors import check_number
from gspo_lightning.objectives.aggregate import Aggregation
from gspo_lightning.objectives.clip import Band, pessimistic, token_scale_note
from gspo_lightning.objectives.inputs import LOG_RATIO_LIMIT, Rows, clamp_log_ratio
from gspo_lightning.objectives.measure import Term
from gspo_lightning.objectives.objective import Objective


@dataclass(repr=False)
class DPPOTV(Band, Objective):
    """Token-level ratio; tokens whose probability moved further than a total-variation bound are dropped.

    ``J = sum_it M_it r_it A_i / sum_i n_i``, ``M = 0`` where A > 0 and ``p_new - p_old > high``, or A < 0 and
    ``p_new - p_old < -low``: the binary total-variation form of arXiv 2602.04879. A rare token may multiply its
    probability, a frequent one may not move far: the opposite of a ratio clip.

    We differ in: dropped tokens stay in the denominator.

    Args:
        clip_low: largest fall of a token's probability if the advantage is negative, [0, 1]; 0.2.
        clip_high: largest rise of a token's probability if the advantage is positive, [0, 1]; 0.2.
    """

    clip_low: float = 0.2
    clip_high: float = 0.2

    aggregation = Aggregation.TOKEN_MEAN

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("clip_low", self.clip_low, low=0.0, high=1.0)
        check_number("clip_high", self.clip_high, low=0.0, high=1.0)

    def term(self, rows: Rows) -> Term:
        """Weigh advantages by the ratio; tokens whose probability has moved too far have no gradient."""
        log_ratio = rows.log_ratio
        advantages = rows.token_advantages
        # The total variation of "this token or another" is the change of this token's probability.
        change = torch.exp(rows.logprobs) - torch.exp(rows.old_logprobs)
        below = change < -self.clip_low
        above = change > self.clip_high
        low, high = pessimistic(below, above, advantages)
        clamped = log_ratio.detach().abs() > LOG_RATIO_LIMIT
        ratio = torch.exp(clamp_log_ratio(log_ratio))
        return Term(
            loss=torch.where(high | low, 0.0, -ratio * advantages),
            ratio=ratio.detach(),
            low=low,
            high=high,
            outside=above | below,
            clamped=clamped,
            flat=clamped,
        )

    def unusual_clip(self) -> str | None:
        """Warn of a clip range on the scale of a sequence ratio."""
        return token_scale_note(self, "usual is 0.2, in probability (arXiv 2602.04879)")
