"""GSPO and GSPO-token: one ratio per sequence, clipped per sequence."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from torch import Tensor

from gspo_lightning.core.errors import UserError, check_number
from gspo_lightning.objectives.clip import RatioClip
from gspo_lightning.objectives.inputs import Rows

LengthNorm = Literal["mean", "sum", "sqrt", "adaptive"]
_POWERS: dict[str, float] = {"mean": 1.0, "sum": 0.0, "sqrt": 0.5, "adaptive": 0.5}
_PAPER = "the paper uses clip_low=3e-4, clip_high=4e-4 (arXiv 2507.18071)"


@dataclass(repr=False)
class GSPO(RatioClip):
    """Sequence-level ratio (geometric mean over tokens), clipped per sequence.

    ``s_i = exp(sum_t (log pi - log pi_old) / n_i)``, ``J = mean_i min(s_i A_i, clip(s_i, 1 - low, 1 + high) A_i)``:
    arXiv 2507.18071, Eq. 5 and 7. The gradient weighs all tokens of a sequence alike: ``s_i A_i / n_i``.

    We differ in: nothing with the defaults. No KL term, as in the paper's run.

    Args:
        clip_low: lower clip of the sequence ratio, [0, 1); 3e-4 in the paper.
        clip_high: upper clip of the sequence ratio, >= 0; 4e-4 in the paper.
        length_norm: divisor of the summed log-ratio. ``mean``: n, the paper. ``sum``: 1, the plain likelihood
            ratio. ``sqrt``: sqrt(n), so noise of independent tokens has one scale for every length. A number p:
            n**p. ``adaptive``: sqrt(n * adaptive_length), which is ``sqrt`` on the scale of ``mean``: short and long
            responses leave the same clip range equally often, and the paper's range keeps its meaning. All but mean
            are research options.
        adaptive_length: response tokens at which ``adaptive`` equals ``mean``, > 0; take a typical response length. A
            constant and not a batch statistic, because the loss must not depend on how a batch is split.
    """

    clip_low: float = 3e-4
    clip_high: float = 4e-4
    length_norm: LengthNorm | float = field(default="mean", kw_only=True)
    adaptive_length: float = field(default=1024.0, kw_only=True)

    level = "sequence"
    per_token_advantages: ClassVar[bool] = False
    token_correction: ClassVar[bool] = False
    usual_clip: ClassVar[str] = _PAPER

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
        divisor = rows.lengths.clamp(min=1) ** self.power
        if self.length_norm == "adaptive":
            divisor = divisor * self.adaptive_length**0.5
        return rows.log_ratio.sum(dim=-1) / divisor

    def unusual_clip(self) -> str | None:
        """Apply the base's rule only if the log-ratio is on the scale of a mean."""
        return super().unusual_clip() if self.length_norm == "adaptive" or self.power == 1 else None


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
    usual_clip: ClassVar[str] = _PAPER

    def log_ratio(self, rows: Rows) -> Tensor:
        """Return the sequence's mean log-ratio with the gradient of each token's own log-probability, [N, T]."""
        return rows.with_own_gradient(rows.mean(rows.log_ratio).unsqueeze(-1))
