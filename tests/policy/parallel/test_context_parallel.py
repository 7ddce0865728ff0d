"""Context parallelism: two ranks compute the same rows; values, gradients and memory against one process."""

from __future__ import annotations

import pytest
import torch

from gspo_lightning.policy.parallel import context_parallel
from gspo_lightning.policy.parallel.context_parallel import ContextGroup
from tests.policy.parallel.context_ranks import HEADS, differences, measured
from tests.runs.ranks import two_ranks


@pytest.mark.thorough
def test_two_ranks_give_values_and_gradients_of_one_process() -> None:
    found = two_ranks(differences)
    for rank, values in enumerate(found):
        assert isinstance(values, dict), values
        assert len(values) == (2 + rank) * len(HEADS)
        assert max(values.values()) < 2e-6, values


def test_bytes_for_the_backward_pass_are_halved() -> None:
    for rank, (alone, shared) in enumerate(two_ranks(measured)):
        assert alone > 9_000_000
        # what every rank keeps whole weighs more beside norms and MLPs that keep little
        assert shared / alone == pytest.approx(0.5, rel=0.1), rank


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([[2, 1], [1, 1]], [[0, 1, None], [None, None, 0], [0, None, None], [None, 0, None]]),
        ([[1, 0], [0, 3]], [[0, None, None], [None, None, None], [None, None, None], [0, 1, 2]]),
    ],
    ids=["the first group has more", "a rank has none"],
)
def test_ranks_of_a_group_take_turns_and_every_group_has_as_many(
    counts: list[list[int]], expected: list[list[int | None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context_parallel, "gather_rows", lambda _: torch.tensor(counts).view(-1, 1))
    found = []
    for rank in range(4):
        monkeypatch.setattr(context_parallel, "rank_and_world", lambda rank=rank: (rank, 4))
        group = ContextGroup.__new__(ContextGroup)
        group.rank, group.size = rank % 2, 2
        found.append(group.turns(counts[rank // 2][rank % 2], torch.device("cpu")))
    assert found == expected
