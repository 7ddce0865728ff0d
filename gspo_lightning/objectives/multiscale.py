"""MultiScale: an interpolation between GSPO and GRPO."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from gspo_lightning.core.errors import check_number
from gspo_lightning.objectives.gspo import RatioClip
from gspo_lightning.objectives.inputs import Rows


@dataclass(repr=False)
class MultiScale(RatioClip):
    """Research: a convex mix of the sequence's and the token's log-ratio, clipped per token.

    ``log r_it = alpha mean_t d_it + (1 - alpha) d_it``, d the log-ratio; every token carries its own gradient, as in
    GSPO-token; mean over tokens, then over sequences. ``alpha = 1`` is GSPO, ``alpha = 0`` is
    GRPO. There is no paper: GSPO's (arXiv 2507.18071) leaves this open.

    Args:
        alpha: weight of the sequence's log-ratio, [0, 1]. At 0.5 half of the token's own deviation remains.
        clip_low: lower clip of the mixed ratio, [0, 1); half of GRPO's, for alpha = 0.5. It must shrink with alpha.
        clip_high: upper clip of the mixed ratio, >= 0; half of GRPO's, for alpha = 0.5.
    """

    alpha: float = 0.5
    clip_low: float = 0.1
    clip_high: float = 0.135

    usual_clip: ClassVar[str] = "the range goes from GRPO's 0.2 (alpha=0) to GSPO's 3e-4, 4e-4 (alpha=1)"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("alpha", self.alpha, low=0.0, high=1.0)
        self.level = "sequence" if self.alpha == 1 else "token"

    def log_ratio(self, rows: Rows) -> Tensor:
        """Return the mixed log-ratio, [N, T]."""
        mix = self.alpha * rows.mean(rows.log_ratio).unsqueeze(-1) + (1 - self.alpha) * rows.log_ratio
        return rows.with_own_gradient(mix)
