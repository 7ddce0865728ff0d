"""Ratio clipping: the shared part of every objective of the form ``min(r A, clip(r, 1 - low, 1 + high) A)``."""

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from gspo_lightning.core.errors import check_number
from gspo_lightning.objectives.inputs import LOG_RATIO_LIMIT, Rows, clamp_log_ratio
from gspo_lightning.objectives.measure import Term
from gspo_lightning.objectives.objective import Objective, Surface
from gspo_lightning.objectives.shapes import check_level

SEQUENCE_SCALE = 1e-2
"""A clip range above this is unusual at sequence level."""
TOKEN_SCALE = 1e-3
"""A clip range below this is unusual at token level."""


class Band(Surface):
    """A required clip range. Not dataclass fields, so every objective declares its own defaults in its own order."""

    clip_low: float
    clip_high: float


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

    usual_clip: ClassVar[str] = ""
    """Recommended range with its source; the end of the sentence of :meth:`unusual_clip`."""

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

        This alone decides what is clipped, and what ``clip/low`` and ``clip/high`` count. Override it for an objective
        that clips by another rule than :func:`pessimistic`.

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
        below = value < 1 - self.clip_low
        above = value > 1 + self.clip_high
        low, high = self.sides(below, above, advantages)
        # min(r A, clip(r) A) without a min: at equal values that would share the gradient between its arguments,
        # and where a constant bound is the smaller one, the gradient is exactly 0.
        bounded = torch.where(low, 1 - self.clip_low, ratio)
        bounded = torch.where(high, 1 + self.clip_high, bounded)
        dual: Tensor | None = None
        if self.dual_clip is not None:
            dual = (advantages < 0) & (value > self.dual_clip)
            bounded = torch.where(dual, self.dual_clip, bounded)
        return Term(
            loss=-bounded * advantages,
            ratio=value,
            low=low,
            high=high,
            dual=dual,
            outside=above | below,
            clamped=clamped,
            flat=clamped,
        )

    def unusual_clip(self) -> str | None:
        """Warn of a clip range above 1e-2 at sequence level, or below 1e-3 at token level."""
        if self.level == "token":
            return token_scale_note(self, self.usual_clip)
        if max(self.clip_low, self.clip_high) > SEQUENCE_SCALE:
            return (
                f"{_describe(self)} hardly ever clips: the ratio of a whole sequence is a mean over its tokens, and an "
                f"update of a large model moves it by about {TOKEN_SCALE:g}; {self.usual_clip}"
            )
        return None


def pessimistic(below: Tensor, above: Tensor, advantages: Tensor) -> tuple[Tensor, Tensor]:
    """Return where the bounds of ``min(r A, clip(r) A)`` clip, (low, high): where the ratio went as A wants it.

    A ratio that went the other way keeps its gradient, which brings it back.

    >>> below, above = torch.tensor([True, True, False, False]), torch.tensor([False, False, True, True])
    >>> [side.tolist() for side in pessimistic(below, above, torch.tensor([1.0, -1.0, 1.0, -1.0]))]
    [[False, True, False, False], [False, False, True, False]]
    """
    return below & (advantages < 0), above & (advantages > 0)


def token_scale_note(objective: Band, usual: str) -> str | None:
    """Explain that a token-level range has the scale of a sequence ratio, for :meth:`Objective.unusual_clip`."""
    if min(objective.clip_low, objective.clip_high) >= TOKEN_SCALE:
        return None
    return (
        f"{_describe(objective)} clips almost every token: this is the scale of a sequence ratio, single tokens move "
        f"by more than {TOKEN_SCALE:g} in any update; {usual}"
    )


def _describe(objective: Band) -> str:
    return f"{type(objective).__name__} with clip_low={objective.clip_low:g}, clip_high={objective.clip_high:g}"
