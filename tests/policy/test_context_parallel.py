"""Context parallelism: two ranks compute the same rows; values, gradients and memory against one process."""

from __future__ import annotations

import pytest

from tests.policy.context_ranks import HEADS, differences, measured
from tests.runs.ranks import two_ranks


def test_two_ranks_give_values_and_gradients_of_one_process() -> None:
    found = two_ranks(differences)
    for rank, values in enumerate(found):
        assert isinstance(values, dict), values
        assert len(values) == (2 + rank) * len(HEADS)
        assert max(values.values()) < 2e-6, values


def test_bytes_for_the_backward_pass_are_halved() -> None:
    for rank, (alone, shared) in enumerate(two_ranks(measured)):
        assert alone > 10_000_000
        assert shared / alone == pytest.approx(0.5, rel=0.06), rank
