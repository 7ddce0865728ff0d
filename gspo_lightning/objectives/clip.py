"""Clip ranges: which side clips, and whether a range has the scale of its ratio."""

from typing import ClassVar

from torch import Tensor

from gspo_lightning.objectives.objective import Surface

SEQUENCE_SCALE = 1e-2
"""A clip range above this is unusual at sequence level."""
TOKEN_SCALE = 1e-3
"""A clip range below this is unusual at token level."""


class Band(Surface):
    """A required clip range. Not dataclass fields, so every objective declares its own defaults in its own order."""

    clip_low: float
    clip_high: float
    usual_clip: ClassVar[str] = ""
    """Recommended range with its source; the end of the sentence of :meth:`unusual_clip`."""

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

    >>> import torch
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
