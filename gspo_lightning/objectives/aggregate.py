"""Loss aggregation: weights of per-token (or per-sequence) losses, and the denominator.

Every aggregation is ``sum_i sum_t w_it L_it / denominator``: weights that depend on one row only, and a denominator
that adds up over rows. This makes the gradient independent of how a mini-batch is split into micro-batches.
"""

from __future__ import annotations

from enum import StrEnum

import torch
from torch import Tensor

__all__ = ["Aggregation", "aggregate", "count_positive", "count_rows", "count_tokens"]


class Aggregation(StrEnum):
    """Weights of a row's tokens, and the denominator."""

    SEQUENCE_MEAN = "sequence_mean"
    """``w_it = 1 / n_i``, divided by the number of non-empty rows: GSPO (Eq. 5), GRPO."""
    SEQUENCE_SUM = "sequence_sum"
    """``w_it = 1``, divided by the number of non-empty rows: LUSPO, REINFORCE; Dr. GRPO with its own denominator."""
    TOKEN_MEAN = "token_mean"
    """``w_it = 1``, divided by the number of response tokens: DAPO, CISPO, PPO."""


def count_rows(response_mask: Tensor) -> Tensor:
    """Count rows with at least one response token, as a float64 scalar."""
    return response_mask.any(dim=-1).sum().to(torch.float64)


def count_tokens(response_mask: Tensor) -> Tensor:
    """Count response tokens, as a float64 scalar."""
    return response_mask.sum().to(torch.float64)


def count_positive(response_mask: Tensor, positive: Tensor) -> Tensor:
    """Count response tokens of the rows where ``positive`` [N] is set, as a float64 scalar."""
    return count_tokens(response_mask & positive.unsqueeze(-1))


def aggregate(values: Tensor, mask: Tensor, lengths: Tensor, how: Aggregation) -> Tensor:
    """Return the weighted sum of ``values``, not yet divided by the denominator.

    Args:
        values: [N, T] one loss per token, or [N] one loss per sequence that all its tokens share. Finite everywhere.
        mask: [N, T] bool.
        lengths: [N] response tokens per row, in the dtype of ``values``.
        how: the weights.
    """
    if values.ndim == 2:
        rows = torch.where(mask, values, 0.0).sum(dim=-1)
        return (rows / lengths.clamp(min=1)).sum() if how is Aggregation.SEQUENCE_MEAN else rows.sum()
    rows = torch.where(lengths > 0, values, 0.0)
    return rows.sum() if how is Aggregation.SEQUENCE_MEAN else (rows * lengths).sum()
