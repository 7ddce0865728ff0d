"""Segment: GSPO over segments of a response, and three ways to split a response."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from gspo_lightning.core.errors import UserError, check_choice, check_number
from gspo_lightning.objectives.clip import SEQUENCE_SCALE
from gspo_lightning.objectives.gspo import RatioClip
from gspo_lightning.objectives.inputs import Rows

SegmentBy = Literal["length", "turn", "given"]


@dataclass(repr=False)
class Segment(RatioClip):
    """Research: GSPO's ratio per segment of a response (fixed length, turn, or as given), clipped per segment.

    ``s_ik = exp(mean of the log-ratio over segment k)``; every token carries the ratio of its segment and its own
    gradient, as in GSPO-token; mean over tokens, then over sequences, so a segment's weight is its number of tokens.
    One segment is GSPO, one token per segment is GRPO. There is no paper: GSPO's (arXiv 2507.18071) leaves this open.

    Args:
        clip_low: lower clip of the segment ratio, [0, 1); between GSPO's and GRPO's, for about 64 tokens.
        clip_high: upper clip of the segment ratio, >= 0; between GSPO's and GRPO's, for about 64 tokens.
        by: ``length``: every ``segment_length`` response tokens. ``turn``: a stretch of response tokens without a gap
            in the mask (tool output separates two turns). ``given``: the ``segments`` argument of the call, for
            example from ``segments_by_delimiter``.
        segment_length: response tokens per segment with ``by: length``, >= 1.
    """

    clip_low: float = 2e-3
    clip_high: float = 2.7e-3
    by: SegmentBy = "length"
    segment_length: int = 64

    usual_clip: ClassVar[str] = "between GSPO's 3e-4, 4e-4 (one segment) and GRPO's 0.2 (one token per segment)"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("by", self.by, get_args(SegmentBy))
        check_number("segment_length", self.segment_length, low=1)
        self.level = "token" if self.by == "length" and self.segment_length == 1 else "sequence"

    def log_ratio(self, rows: Rows) -> Tensor:
        """Return the mean log-ratio of each token's segment, [N, T]."""
        index = self._segments(rows)
        sums = torch.zeros_like(rows.log_ratio).scatter_add(1, index, rows.log_ratio)
        sizes = torch.zeros_like(rows.log_ratio).scatter_add(1, index, rows.mask.to(rows.log_ratio.dtype))
        # 0 / 0 only in segments without a token: at most at masked positions.
        return rows.with_own_gradient((sums / sizes).gather(1, index))

    def _segments(self, rows: Rows) -> Tensor:
        if self.by == "length":
            return segments_by_length(rows.mask, self.segment_length)
        if self.by == "turn":
            return segments_by_turn(rows.mask)
        if rows.segments is None:
            raise UserError("segments", "is None, but Segment(by='given') needs it, int64 of shape [N, T]")
        return rows.segments

    def unusual_clip(self) -> str | None:
        """Apply the base's rule with a range ten times wider than for sequences."""
        wide = max(self.clip_low, self.clip_high) > 10 * SEQUENCE_SCALE
        return super().unusual_clip() if wide or self.level == "token" else None


def segments_by_length(mask: Tensor, length: int) -> Tensor:
    """Number segments of ``length`` response tokens, counting only tokens of the mask: [N, T] int64.

    >>> segments_by_length(torch.tensor([[False, True, True, True]]), 2)
    tensor([[0, 0, 0, 1]])
    """
    return (mask.cumsum(dim=-1) - 1).clamp(min=0) // length


def segments_by_turn(mask: Tensor) -> Tensor:
    """Number the unbroken stretches of the mask: [N, T] int64.

    >>> segments_by_turn(torch.tensor([[True, True, False, True, False]]))
    tensor([[0, 0, 0, 1, 1]])
    """
    starts = mask.clone()
    starts[:, 1:] &= ~mask[:, :-1]
    return (starts.cumsum(dim=-1) - 1).clamp(min=0)


def segments_by_delimiter(token_ids: Tensor, mask: Tensor, delimiters: Sequence[int]) -> Tensor:
    """Number the parts of a response, each ending with a delimiter: [N, T] int64.

    Args:
        token_ids: [N, T] int64.
        mask: [N, T] bool; delimiters elsewhere do not count.
        delimiters: token ids, for example those of newlines.

    >>> segments_by_delimiter(torch.tensor([[5, 9, 5, 5]]), torch.ones(1, 4, dtype=torch.bool), [9])
    tensor([[0, 0, 1, 1]])
    """
    ends = torch.isin(token_ids, torch.tensor(list(delimiters), device=token_ids.device)) & mask
    return ends.cumsum(dim=-1) - ends.to(torch.int64)
