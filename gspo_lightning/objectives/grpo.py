"""GRPO: one ratio per token."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from gspo_lightning.objectives.gspo import RatioClip
from gspo_lightning.objectives.inputs import Rows

TOKEN_RANGE = "usual is clip_low=0.2, clip_high=0.2 to 0.28 (arXiv 1707.06347, 2503.14476)"


@dataclass(repr=False)
class GRPO(RatioClip):
    """Token-level ratio, clipped per token; mean over tokens, then over sequences.

    ``J = mean_i (1 / n_i) sum_t min(r_it A_i, clip(r_it, 1 - low, 1 + high) A_i)``: arXiv 2402.03300, Eq. 3.

    We differ in: the KL term is off by default (``kl_coef``), and the upper clip is wider.

    Args:
        clip_low: lower clip of the token ratio, [0, 1); 0.2 as in PPO.
        clip_high: upper clip of the token ratio, >= 0; 0.27 is the GRPO baseline of arXiv 2507.18071, 0.2 the original.
    """

    clip_low: float = 0.2
    clip_high: float = 0.27

    usual_clip: ClassVar[str] = TOKEN_RANGE

    def log_ratio(self, rows: Rows) -> Tensor:
        """Return each token's own log-ratio, [N, T]."""
        return rows.log_ratio
