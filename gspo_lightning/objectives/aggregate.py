"""Loss aggregation: weights of per-token (or per-sequence) losses, and the denominator.

Every aggregation is ``sum_i sum_t w_it L_it / denominator``: weights that depend on one row only, and a denominator
that adds up over rows. This makes the gradient independent of how a mini-batch is split into micro-batches.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

import torch
from torch import Tensor


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


def weighted_count(count: Callable[[Tensor], Tensor], response_mask: Tensor, weights: Tensor) -> Tensor:
    """Return the sum over rows of ``count`` of each one alone, times its weight, as a float64 scalar.

    Args:
        count: counts rows [N, T] bool; adds up over rows.
        response_mask: [N, T] bool.
        weights: [N] float.
    """
    each = torch.stack([count(row) for row in response_mask.split(1)])
    return (each.double() * weights.double()).sum()


def aggregate(values: Tensor, mask: Tensor, lengths: Tensor, how: Aggregation, weights: Tensor | None = None) -> Tensor:
    """Return the weighted sum of ``values``, not yet divided by the denominator.

    Args:
        values: [N, T] one loss per token, or [N] one loss per sequence that all its tokens share. Finite everywhere.
        mask: [N, T] bool.
        lengths: [N] response tokens per row, in the dtype of ``values``.
        how: the weights of tokens.
        weights: [N] weights of rows (None: 1 each). They matter where a row counts once, whatever its length; where its
            tokens count, several rows of a rollout have no more weight than one.
    """
    if values.ndim == 2:
        rows = torch.where(mask, values, 0.0).sum(dim=-1)
        rows = rows / lengths.clamp(min=1) if how is Aggregation.SEQUENCE_MEAN else rows
    else:
        rows = torch.where(lengths > 0, values, 0.0)
        rows = rows if how is Aggregation.SEQUENCE_MEAN else rows * lengths
    return (rows if weights is None or how is not Aggregation.SEQUENCE_MEAN else rows * weights).sum()
