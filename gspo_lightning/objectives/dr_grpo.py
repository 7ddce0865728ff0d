"""Dr. GRPO: GRPO without its length bias."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from gspo_lightning.core.errors import check_number
from gspo_lightning.objectives.aggregate import Aggregation
from gspo_lightning.objectives.grpo import TOKEN_RANGE
from gspo_lightning.objectives.gspo import RatioClip
from gspo_lightning.objectives.inputs import Rows


@dataclass(repr=False)
class DrGRPO(RatioClip):
    """Token-level ratio; sum over all tokens divided by a constant, rows times the response limit.

    ``J = sum_it min(r_it A_i, clip(r_it, 1 - low, 1 + high) A_i) / (N L)``: arXiv 2503.20783, section 3. Pair it with
    ``GroupMean`` advantages (not divided by the standard deviation).

    We differ in: N counts only non-empty rows, so masked rows do not shrink the step.

    Args:
        max_response_tokens: L, tokens, >= 1; the response limit of the run, so it has no default.
        clip_low: lower clip of the token ratio, [0, 1); 0.2 as in PPO.
        clip_high: upper clip of the token ratio, >= 0; 0.2 as in PPO.
    """

    max_response_tokens: int
    clip_low: float = 0.2
    clip_high: float = 0.2

    aggregation = Aggregation.SEQUENCE_SUM
    usual_clip: ClassVar[str] = TOKEN_RANGE

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("max_response_tokens", self.max_response_tokens, low=1)

    def log_ratio(self, rows: Rows) -> Tensor:
        """Return each token's own log-ratio, [N, T]."""
        return rows.log_ratio

    def count(self, response_mask: Tensor) -> Tensor:
        """Return non-empty rows times ``max_response_tokens``."""
        return super().count(response_mask) * self.max_response_tokens
