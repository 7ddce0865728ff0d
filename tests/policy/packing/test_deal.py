"""Which rows share a mini-batch: equal parts of every group, a random permutation, or whole groups; on any ranks."""

from __future__ import annotations

from collections import Counter
from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.randomness import stream
from gspo_lightning.core.types import Rollout
from gspo_lightning.policy.packing import deal as module
from gspo_lightning.policy.packing.deal import Deal, deal_rows
from gspo_lightning.policy.packing.rollout_batch import RolloutBatch
from tests.policy.packing.test_batches import groups, row_ids

BASE = stream(77)


def grid(prompts: int, size: int) -> list[list[Rollout]]:
    """Groups 1, 2, ... of rollouts 0, 1, ..., each of one token."""
    return groups([[1] * size] * prompts)


def names(dealt: list[list[Rollout]]) -> list[list[str]]:
    """``3b`` is the second rollout of the third group."""
    return [[f"{r.prompt.id}{'abcdefgh'[r.sample]}" for r in rows] for rows in dealt]


def test_equal_parts_by_hand() -> None:
    """Two blocks of two groups; those of the second begin at the second mini-batch."""
    assert names(deal_rows(grid(4, 4), mini_batches=2, deal="stratified")) == [
        ["1a", "1c", "2a", "2c", "3b", "3d", "4b", "4d"],
        ["1b", "1d", "2b", "2d", "3a", "3c", "4a", "4c"],
    ]


def test_a_group_that_cannot_be_divided_gives_one_row_more_by_turns() -> None:
    assert names(deal_rows(grid(2, 3), mini_batches=2, deal="stratified")) == [["1a", "1c", "2b"], ["1b", "2a", "2c"]]


def test_groups_that_are_smaller_than_the_number_of_mini_batches() -> None:
    assert names(deal_rows(grid(3, 2), mini_batches=3, deal="stratified")) == [["1a", "3b"], ["1b", "2a"], ["2b", "3a"]]


def test_whole_groups_by_hand() -> None:
    assert names(deal_rows(grid(4, 2), mini_batches=2, deal="groups")) == [
        ["1a", "1b", "2a", "2b"],
        ["3a", "3b", "4a", "4b"],
    ]


def on_ranks(every: list[list[Rollout]], world: int, mini_batches: int, deal: Deal) -> list[list[list[Rollout]]]:
    """Rank -> its rows of every mini-batch; group i goes to rank i % world, as in the training order."""
    with pytest.MonkeyPatch.context() as patch:
        found = []
        for rank in range(world):
            patch.setattr(module, "rank_and_world", lambda rank=rank: (rank, world))
            found.append(deal_rows(every[rank::world], mini_batches=mini_batches, deal=deal, base=BASE))
        return found


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(get_args(Deal)), st.integers(1, 5), st.integers(1, 6), st.integers(1, 3), st.integers(1, 3))
def test_every_row_is_trained_once_in_mini_batches_of_equal_size_that_no_number_of_ranks_changes(
    deal: Deal, mini_batches: int, size: int, world: int, turns: int
) -> None:
    every = grid(mini_batches * world * turns, size)
    alone = deal_rows(every, mini_batches=mini_batches, deal=deal, base=BASE)
    together = on_ranks(every, world, mini_batches, deal)
    assert sorted(name for rows in names(alone) for name in rows) == sorted(
        name for g in every for name in names([g])[0]
    )
    assert {len(rows) for rows in alone} == {world * turns * size}
    for i, rows in enumerate(alone):
        assert sorted(names([rows])[0]) == sorted(name for rank in together for name in names([rank[i]])[0])
    if deal == "stratified":
        assert {len(rows) for rank in together for rows in rank} == {turns * size}
        of_a_group = {Counter(r.prompt.id for r in rows)[g[0].prompt.id] for rows in alone for g in every}
        assert of_a_group <= {size // mini_batches, -(-size // mini_batches)}


def test_a_permutation_depends_on_its_stream_and_is_no_other() -> None:
    every = grid(32, 8)
    first, again, other = (deal_rows(every, mini_batches=4, deal="shuffled", base=stream(b)) for b in (1, 1, 2))
    assert names(first) == names(again) != names(other)
    seen = Counter(Counter(r.prompt.id for r in rows)[1 + g] for rows in first for g in range(32))
    assert seen[2] < 100  # rows of a group are not spread evenly: 128 cells would all have 2
    assert max(seen) >= 4


@pytest.mark.parametrize("deal", get_args(Deal))
def test_groups_that_no_deal_can_divide_are_refused(deal: Deal) -> None:
    with pytest.raises(UserError, match="3 groups per rank cannot be dealt evenly to 2 mini-batches") as caught:
        deal_rows(grid(3, 2), mini_batches=2, deal=deal)
    assert caught.value.field == "data.minibatches_per_rollout"


def test_rows_of_a_prompt_in_a_mini_batch_share_it() -> None:
    """Prompts have 3 and 4 tokens, responses 2: 4 rows take 3 + 4 + 4 x 2 = 15 tokens packed."""
    every = groups([[2] * 4, [2] * 4])
    for batch in RolloutBatch.of(every, mini_batches=2, max_tokens=15, packed=True, deal="stratified").mini_batches:
        (part,) = batch.micro_batches
        assert part.prompt_index is not None
        assert part.prompt_index.tolist() == [0, 0, 1, 1]


def test_dealt_rows_keep_their_advantages_routes_and_logprobs() -> None:
    """Advantages, also by token, routes, log-probabilities: all of them tell whose they are."""
    every = groups([[3, 3, 3], [3, 3, 3]])
    for group in every:
        for r in group:
            r.routes = torch.full((len(r.prompt.token_ids) + 2, 1, 2), 10 * r.prompt.id + r.sample)
    made = RolloutBatch.of(every, mini_batches=2, max_tokens=14, packed=True, deal="stratified")
    for r in (r for group in every for r in group):
        r.token_advantages = torch.full((3,), 100.0 * r.prompt.id + r.sample)
    made.take_advantages()
    for batch in made.mini_batches:
        for part in batch.micro_batches:
            assert part.routes is not None
            assert part.behaviour_logprobs is not None
            for i, (prompt, sample) in enumerate(row_ids([part])):
                assert part.advantages[i].tolist() == [100.0 * prompt + sample] * 3
                assert int(part.routes[i, 0, 0, 0]) == 10 * prompt + sample
                assert float(part.behaviour_logprobs[i, 0]) == -0.125 - sample
