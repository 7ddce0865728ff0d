"""Rows of a rollout share its weight: sums and counts worked out by hand."""

from __future__ import annotations

import pytest
import torch

from gspo_lightning.objectives.aggregate import Aggregation, aggregate, count_rows, count_tokens, weighted_count

MASK = torch.tensor([[True, True, True], [True, True, False], [False, False, False]])
LENGTHS = torch.tensor([3.0, 2.0, 0.0])
WEIGHTS = torch.tensor([0.5, 0.25, 8.0])
TOKENS = torch.tensor([[1.0, 2.0, 6.0], [4.0, 6.0, 99.0], [99.0, 99.0, 99.0]])


@pytest.mark.parametrize(
    ("how", "plain", "weighted"),
    [
        (Aggregation.SEQUENCE_MEAN, 3.0 + 5.0, 0.5 * 3.0 + 0.25 * 5.0),
        (Aggregation.SEQUENCE_SUM, 9.0 + 10.0, 9.0 + 10.0),
        (Aggregation.TOKEN_MEAN, 9.0 + 10.0, 9.0 + 10.0),
    ],
)
def test_losses_of_tokens(how: Aggregation, plain: float, weighted: float) -> None:
    assert aggregate(TOKENS, MASK, LENGTHS, how).item() == plain
    assert aggregate(TOKENS, MASK, LENGTHS, how, WEIGHTS).item() == weighted


@pytest.mark.parametrize(
    ("how", "plain", "weighted"),
    [
        (Aggregation.SEQUENCE_MEAN, 7.0 + 3.0, 0.5 * 7.0 + 0.25 * 3.0),
        (Aggregation.SEQUENCE_SUM, 3 * 7.0 + 2 * 3.0, 3 * 7.0 + 2 * 3.0),
        (Aggregation.TOKEN_MEAN, 3 * 7.0 + 2 * 3.0, 3 * 7.0 + 2 * 3.0),
    ],
)
def test_losses_of_sequences(how: Aggregation, plain: float, weighted: float) -> None:
    values = torch.tensor([7.0, 3.0, 99.0])
    assert aggregate(values, MASK, LENGTHS, how).item() == plain
    assert aggregate(values, MASK, LENGTHS, how, WEIGHTS).item() == weighted


def test_weighted_counts_of_rows_and_tokens_by_hand() -> None:
    """An empty row counts nothing, whatever its weight."""
    assert weighted_count(count_rows, MASK, WEIGHTS).item() == 0.5 + 0.25
    assert weighted_count(count_tokens, MASK, WEIGHTS).item() == 0.5 * 3 + 0.25 * 2
    assert weighted_count(count_tokens, MASK, WEIGHTS).dtype == torch.float64
