"""DAPO: GRPO with a wider upper clip and a mean over all tokens."""

from dataclasses import dataclass

from gspo_lightning.objectives.aggregate import Aggregation
from gspo_lightning.objectives.grpo import GRPO


@dataclass(repr=False)
class DAPO(GRPO):
    """Token-level ratio, clip-higher; sum over all tokens divided by all tokens of the mini-batch.

    ``J = sum_it min(r_it A_i, clip(r_it, 1 - low, 1 + high) A_i) / sum_i n_i``: arXiv 2503.14476, Eq. 8.

    We differ in: the paper's dynamic sampling and overlong shaping concern data and rewards, not the objective. The
    denominator counts the tokens of the whole mini-batch, not of a micro-batch.

    Args:
        clip_low: lower clip of the token ratio, [0, 1); 0.2 in the paper.
        clip_high: upper clip of the token ratio, >= 0; 0.28 in the paper.
    """

    clip_low: float = 0.2
    clip_high: float = 0.28

    aggregation = Aggregation.TOKEN_MEAN
