"""GSPO-token: GSPO's ratio with an advantage for each token."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from gspo_lightning.objectives.gspo import PAPER_RANGE, RatioClip
from gspo_lightning.objectives.inputs import Rows


@dataclass(repr=False)
class GSPOToken(RatioClip):
    """GSPO's ratio with optional per-token advantages (multi-turn credit).

    ``s_it = sg[s_i] pi(y_it) / sg[pi(y_it)]``, mean over tokens, then over sequences: arXiv 2507.18071, Eq. 13 and 14.
    With one advantage per sequence its loss, clipping and gradient are GSPO's.

    We differ in: nothing.

    Args:
        clip_low: lower clip of the sequence ratio, [0, 1); 3e-4 in the paper.
        clip_high: upper clip of the sequence ratio, >= 0; 4e-4 in the paper.
    """

    clip_low: float = 3e-4
    clip_high: float = 4e-4

    level = "sequence"
    usual_clip: ClassVar[str] = PAPER_RANGE

    def log_ratio(self, rows: Rows) -> Tensor:
        """Return the sequence's mean log-ratio with the gradient of each token's own log-probability, [N, T]."""
        return rows.with_own_gradient(rows.mean(rows.log_ratio).unsqueeze(-1))
