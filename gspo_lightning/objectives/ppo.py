"""PPO-clip without a critic."""

from dataclasses import dataclass

from gspo_lightning.objectives.aggregate import Aggregation
from gspo_lightning.objectives.grpo import GRPO


@dataclass(repr=False)
class PPO(GRPO):
    """PPO-clip without a critic: token-level ratio, mean over all tokens.

    ``J = sum_it min(r_it A_it, clip(r_it, 1 - low, 1 + high) A_it) / sum_i n_i``: arXiv 1707.06347, Eq. 7.

    We differ in: there is no critic and no GAE. Pair it with ``BatchNormalised`` advantages, or your own advantages per
    token [N, T]; they are not standardised again here, because the result would depend on the micro-batch.

    Args:
        clip_low: lower clip of the token ratio, [0, 1); 0.2 in the paper.
        clip_high: upper clip of the token ratio, >= 0; 0.2 in the paper.
    """

    clip_low: float = 0.2
    clip_high: float = 0.2

    aggregation = Aggregation.TOKEN_MEAN
