"""LUSPO: GSPO with the loss multiplied by the response length."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from gspo_lightning.objectives.aggregate import Aggregation
from gspo_lightning.objectives.gspo import RatioClip
from gspo_lightning.objectives.inputs import Rows


@dataclass(repr=False)
class LUSPO(RatioClip):
    """GSPO with every sequence's loss multiplied by its length, against the drift to short responses.

    ``J = mean_i n_i min(s_i A_i, clip(s_i, 1 - low, 1 + high) A_i)`` with GSPO's ``s_i``: arXiv 2602.05261. The
    gradient weighs all tokens of the mini-batch alike, whatever the length of their sequence.

    We differ in: nothing. Gradients are larger than GSPO's by a factor of the mean response length; the optimizer sees
    that.

    Args:
        clip_low: lower clip of the sequence ratio, [0, 1); 2e-3 in the paper.
        clip_high: upper clip of the sequence ratio, >= 0; 2.5e-3 in the paper.
    """

    clip_low: float = 2e-3
    clip_high: float = 2.5e-3

    level = "sequence"
    aggregation = Aggregation.SEQUENCE_SUM
    per_token_advantages: ClassVar[bool] = False
    token_correction: ClassVar[bool] = False
    usual_clip: ClassVar[str] = "the paper uses clip_low=2e-3, clip_high=2.5e-3 (arXiv 2602.05261)"

    def log_ratio(self, rows: Rows) -> Tensor:
        """Return the mean log-ratio over the tokens, [N]."""
        return rows.mean(rows.log_ratio)
