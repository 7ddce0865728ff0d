"""GSPO (arXiv 2507.18071) from top to bottom: clipped surrogate, importance ratio, mean over sequences.

Other clipped objectives share :class:`RatioClip`; KL terms, corrections and metrics of all are in ``objective.py``.
"""

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor

from gspo_lightning.core.errors import UserError, check_number
from gspo_lightning.objectives.aggregate import Aggregation
from gspo_lightning.objectives.clip import Band, pessimistic
from gspo_lightning.objectives.inputs import LOG_RATIO_LIMIT, Rows, clamp_log_ratio
from gspo_lightning.objectives.measure import Term
from gspo_lightning.objectives.objective import Objective
from gspo_lightning.objectives.shapes import check_level

LengthNorm = Literal["mean", "sum", "sqrt", "adaptive"]
PAPER_RANGE = "the paper uses clip_low=3e-4, clip_high=4e-4 (arXiv 2507.18071)"
_POWERS: dict[str, float] = {"mean": 1.0, "sum": 0.0, "sqrt": 0.5, "adaptive": 0.5}


@dataclass(repr=False)
class RatioClip(Band, Objective):
    """Base of clipped objectives: a subclass defines the log-ratio and how losses are aggregated.

    Args:
        clip_low: the ratio is clipped below 1 - clip_low if the advantage is negative, in [0, 1).
        clip_high: the ratio is clipped above 1 + clip_high if the advantage is positive, >= 0.
        dual_clip: if the advantage is negative, the loss is at most dual_clip * abs(advantage): a bound on ratios
            that grow without limit, > 1; 3 in its paper (arXiv 1912.09729, Eq. 5). None switches it off.
    """

    dual_clip: float | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("clip_low", self.clip_low, low=0.0, high=1.0, open_high=True)
        check_number("clip_high", self.clip_high, low=0.0)
        if self.dual_clip is not None:
            check_number("dual_clip", self.dual_clip, low=1.0, open_low=True)

    @abstractmethod
    def log_ratio(self, rows: Rows) -> Tensor:
        """Return the log-ratio with its gradient, [N] or [N, T]; values at masked positions do not matter."""

    def sides(self, below: Tensor, above: Tensor, advantages: Tensor) -> tuple[Tensor, Tensor]:
        """Return where the lower bound and where the upper bound take the gradient away, bool like ``below``.

        This alone decides what is clipped, and what ``clip/low`` and ``clip/high`` count. Override it to clip by
        another rule than :func:`pessimistic`.

        Args:
            below: ratios under 1 - clip_low.
            above: ratios over 1 + clip_high.
            advantages: at the level of the ratio.
        """
        return pessimistic(below, above, advantages)

    def term(self, rows: Rows) -> Term:
        """Return ``-min(r A, clip(r) A)``, with exactly zero gradient where the clipped branch is the smaller one."""
        log_ratio = self.log_ratio(rows)
        check_level(self, "log_ratio", "log-ratio", log_ratio, rows)
        log_ratio = torch.where(rows.valid(log_ratio), log_ratio, 0.0)
        clamped = log_ratio.detach().abs() > LOG_RATIO_LIMIT
        ratio = torch.exp(clamp_log_ratio(log_ratio))
        value = ratio.detach()
        advantages = rows.advantages_like(ratio)
        # Eq. 5: min(r A, clip(r, 1 - low, 1 + high) A), without a min. At equal values that would share the gradient
        # between its arguments; here it is exactly 0 where a constant bound is the smaller one.
        below = value < 1 - self.clip_low
        above = value > 1 + self.clip_high
        low, high = self.sides(below, above, advantages)
        bounded = torch.where(high, 1 + self.clip_high, torch.where(low, 1 - self.clip_low, ratio))
        dual: Tensor | None = None
        if self.dual_clip is not None:
            dual = (advantages < 0) & (value > self.dual_clip)
            bounded = torch.where(dual, self.dual_clip, bounded)
        return Term(
            loss=-bounded * advantages,  # to be minimised: -J
            ratio=value,
            low=low,
            high=high,
            dual=dual,
            outside=above | below,
            clamped=clamped,
            flat=clamped,
        )


@dataclass(repr=False)
class GSPO(RatioClip):
    """Sequence-level ratio (geometric mean over tokens), clipped per sequence.

    ``s_i = exp(sum_t (log pi - log pi_old) / n_i)``, ``J = mean_i min(s_i A_i, clip(s_i, 1 - low, 1 + high) A_i)``:
    arXiv 2507.18071, Eq. 5 and 7. The gradient weighs all tokens of a sequence alike: ``s_i A_i / n_i``.

    We differ in: nothing with the defaults. No KL term, as in the paper's run.

    Args:
        clip_low: lower clip of the sequence ratio, [0, 1); 3e-4 in the paper.
        clip_high: upper clip of the sequence ratio, >= 0; 4e-4 in the paper.
        length_norm: divisor of the summed log-ratio. ``mean``: n, the paper; the others are research. ``sum``: 1, the
            plain likelihood ratio. ``sqrt``: sqrt(n), so noise of independent tokens has one scale for every length. A
            number p: n**p. ``adaptive``: sqrt(n * adaptive_length), which is ``sqrt`` on the scale of ``mean``: short
            and long responses leave the same clip range equally often, and the paper's range keeps its meaning.
        adaptive_length: response tokens at which ``adaptive`` equals ``mean``, > 0; take a typical response length. A
            constant and not a batch statistic, because the loss must not depend on how a batch is split.
    """

    clip_low: float = 3e-4
    clip_high: float = 4e-4
    length_norm: LengthNorm | float = field(default="mean", kw_only=True)
    adaptive_length: float = field(default=1024.0, kw_only=True)

    level = "sequence"
    # Eq. 5, the mean over i: each sequence counts once, whatever its length. The sum over the rows of a call is divided
    # by the number of sequences of the whole mini-batch, over all micro-batches and ranks.
    aggregation = Aggregation.SEQUENCE_MEAN
    per_token_advantages: ClassVar[bool] = False
    token_correction: ClassVar[bool] = False
    usual_clip: ClassVar[str] = PAPER_RANGE

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("adaptive_length", self.adaptive_length, low=0.0, open_low=True)
        if isinstance(self.length_norm, str) and self.length_norm not in _POWERS:
            raise UserError("length_norm", f"is {self.length_norm!r}, but must be {', '.join(_POWERS)} or a power")
        if not isinstance(self.length_norm, str):
            check_number("length_norm", self.length_norm, low=0.0)

    @property
    def power(self) -> float:
        """Exponent p of the divisor n**p."""
        return _POWERS[self.length_norm] if isinstance(self.length_norm, str) else float(self.length_norm)

    def log_ratio(self, rows: Rows) -> Tensor:
        """Return ``sum_t log_ratio / n**p``, [N]."""
        # Eq. 7: s_i = (pi(y_i|x) / pi_old(y_i|x)) ** (1 / n_i), in logarithms; exp follows in term()
        divisor = rows.lengths.clamp(min=1) ** self.power
        if self.length_norm == "adaptive":
            divisor = divisor * self.adaptive_length**0.5
        return rows.log_ratio.sum(dim=-1) / divisor

    def unusual_clip(self) -> str | None:
        """Apply the base's rule only if the log-ratio is on the scale of a mean."""
        return super().unusual_clip() if self.length_norm == "adaptive" or self.power == 1 else None
