"""GMPO: a geometric mean of token ratios, each clipped before the mean."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from gspo_lightning.core.errors import check_number
from gspo_lightning.objectives.clip import Band, pessimistic, token_scale_note
from gspo_lightning.objectives.inputs import LOG_RATIO_LIMIT, Rows, clamp_log_ratio
from gspo_lightning.objectives.measure import Term
from gspo_lightning.objectives.objective import Objective


@dataclass(repr=False)
class GMPO(Band, Objective):
    """Geometric mean of token ratios, each clipped in log space before the mean.

    ``J = mean_i exp(mean_t d'_it) A_i`` with ``d' = min(d, clip(d, -low, high))`` for A > 0 and the maximum for A < 0,
    d the token's log-ratio: arXiv 2507.20673, Eq. 4 and its pseudo-code.

    We differ in: nothing. ``ratio`` and ``clipped`` are per token, because tokens are clipped.

    Args:
        clip_low: lower clip of the token's log-ratio, nats, >= 0; 0.4 in the paper (ratios from exp(-0.4)).
        clip_high: upper clip of the token's log-ratio, nats, >= 0; 0.4 in the paper (ratios up to exp(0.4)).
    """

    clip_low: float = 0.4
    clip_high: float = 0.4

    per_token_advantages: ClassVar[bool] = False
    token_correction: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("clip_low", self.clip_low, low=0.0)
        check_number("clip_high", self.clip_high, low=0.0)

    def term(self, rows: Rows) -> Term:
        """Weigh advantages by the geometric mean of clipped token ratios."""
        value = rows.log_ratio.detach()
        advantages = rows.token_advantages
        below = value < -self.clip_low
        above = value > self.clip_high
        low, high = pessimistic(below, above, advantages)
        clipped = torch.where(high, self.clip_high, torch.where(low, -self.clip_low, rows.log_ratio))
        mean = rows.mean(clipped)
        far = mean.detach().abs() > LOG_RATIO_LIMIT  # the whole row loses its gradient
        return Term(
            loss=-torch.exp(clamp_log_ratio(mean)) * rows.advantages,
            ratio=torch.exp(clamp_log_ratio(value)),
            low=low,
            high=high,
            outside=above | below,
            clamped=(value.abs() > LOG_RATIO_LIMIT) | far.unsqueeze(-1),
            flat=far,
        )

    def unusual_clip(self) -> str | None:
        """Warn of a clip range on the scale of a sequence ratio."""
        return token_scale_note(self, "the paper uses 0.4 in log space (arXiv 2507.20673)")
