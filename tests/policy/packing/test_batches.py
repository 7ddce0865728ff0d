"""Whole groups become mini-batches, rows become micro-batches under a token budget; no row is lost or doubled."""

from __future__ import annotations

import dataclasses
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.types import FinishReason, MicroBatch, Prompt, Rollout
from gspo_lightning.policy.packing.batches import cut_micro_batches, filler, make_micro_batch
from gspo_lightning.policy.packing.rollout_batch import RolloutBatch


def rollout(prompt: int, sample: int, prompt_length: int, length: int, reward: float | None = 1.0) -> Rollout:
    """Token ids tell whose they are: 1000 * prompt + 10 * sample + position."""
    base = 1000 * prompt + 10 * sample
    return Rollout(
        prompt=Prompt(prompt, f"p{prompt}", tuple(range(1000 * prompt + 500, 1000 * prompt + 500 + prompt_length))),
        sample=sample,
        token_ids=torch.arange(base, base + length),
        logprobs=-torch.arange(1, length + 1, dtype=torch.float32) / 8 - sample,
        response_mask=torch.ones(length, dtype=torch.bool),
        finish_reason=FinishReason.STOP,
        policy_version=0,
        reward=reward,
        advantage=prompt + sample / 8,
    )


def groups(sizes: list[list[int]]) -> list[list[Rollout]]:
    return [[rollout(p + 1, k, 2 + p % 3, n) for k, n in enumerate(lengths)] for p, lengths in enumerate(sizes)]


def row_ids(micro_batches: list[MicroBatch]) -> list[tuple[int, int]]:
    """(prompt, sample) of every row, read back from the tokens."""
    found = []
    for m in micro_batches:
        for row in range(m.input_ids.shape[0]):
            first = int(m.input_ids[row, int(m.prompt_lengths[row])])
            found.append((first // 1000, first % 1000 // 10))
    return found


def test_a_micro_batch_is_prompt_response_padding() -> None:
    m = make_micro_batch([rollout(1, 0, 2, 3), rollout(2, 1, 4, 2)])
    assert m.input_ids.tolist() == [[1500, 1501, 1000, 1001, 1002, 0], [2500, 2501, 2502, 2503, 2010, 2011]]
    assert m.prompt_lengths.tolist() == [2, 4]
    assert m.response_lengths.tolist() == [3, 2]
    assert m.response_mask.tolist() == [[True, True, True], [True, True, False]]
    assert m.advantages.tolist() == [1.0, 2.125]
    assert m.behaviour_logprobs is not None
    assert m.behaviour_logprobs.tolist() == [[-0.125, -0.25, -0.375], [-1.125, -1.25, 0.0]]
    assert (m.old_logprobs, m.weight, m.num_tokens) == (None, 1.0, 11)


def test_masks_come_from_the_rollout_and_not_from_token_values() -> None:
    row = rollout(1, 0, 2, 3)
    row.token_ids = torch.tensor([0, 7, 0])  # the padding id, chosen by the policy
    row.response_mask = torch.tensor([True, False, True])  # a tool wrote the second token
    assert make_micro_batch([row]).response_mask.tolist() == [[True, False, True]]


def test_a_missing_reward_keeps_its_row_with_an_empty_mask() -> None:
    m = make_micro_batch([rollout(1, 0, 2, 3, reward=None), rollout(1, 1, 2, 2, reward=0.0)])
    assert m.response_mask.tolist() == [[False, False, False], [True, True, False]]
    assert m.response_lengths.tolist() == [3, 2]


def test_without_one_rows_logprobs_there_are_no_behaviour_logprobs() -> None:
    row = rollout(1, 0, 2, 3)
    row.logprobs = None
    assert make_micro_batch([row, rollout(1, 1, 2, 3)]).behaviour_logprobs is None


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=30), st.integers(14, 60))
def test_every_row_lands_once_and_every_micro_batch_keeps_the_budget(lengths: list[int], budget: int) -> None:
    rows = [rollout(1 + i // 9, i % 9, 2 + i % 4, n) for i, n in enumerate(lengths)]
    cut = cut_micro_batches(rows, budget)
    assert Counter(row_ids(cut)) == Counter((r.prompt.id, r.sample) for r in rows)
    assert all(m.input_ids.numel() <= budget for m in cut)  # padding included
    assert all(int(m.lengths.max()) == m.input_ids.shape[1] for m in cut)  # no column is padding only
    # greedy: the longest row of a micro-batch would not have fitted into the one before
    for before, after in pairwise(cut):
        assert (before.input_ids.shape[0] + 1) * before.input_ids.shape[1] > budget
        assert after.input_ids.shape[1] <= before.input_ids.shape[1]


def test_rows_of_one_length_keep_their_order() -> None:
    rows = [rollout(1, k, 2, 3) for k in range(7)]
    assert row_ids(cut_micro_batches(rows, 15)) == [(1, k) for k in range(7)]


def test_a_budget_of_exactly_one_row_is_enough_and_one_less_is_refused() -> None:
    rows = [rollout(1, 0, 2, 3), rollout(1, 1, 2, 8)]
    assert len(cut_micro_batches(rows, 10)) == 2
    with pytest.raises(UserError, match="is 9, but one sequence has 10 tokens") as caught:
        cut_micro_batches(rows, 9)
    assert caught.value.field == "data.max_tokens_per_micro_batch"
    assert caught.value.fix is not None
    assert "10" in caught.value.fix


def test_mini_batches_hold_whole_groups_in_order() -> None:
    made = RolloutBatch.of(
        groups([[3, 5], [4, 4], [1, 9], [2, 2]]), mini_batches=2, max_tokens=24, iteration=6
    ).mini_batches
    assert [{p for p, _ in row_ids(b.micro_batches)} for b in made] == [{1, 2}, {3, 4}]
    assert all(Counter(p for p, _ in row_ids(b.micro_batches)).most_common()[-1][1] == 2 for b in made)
    assert [(b.index, b.iteration, b.num_rows) for b in made] == [(0, 6, 4), (1, 6, 4)]


def test_groups_that_cannot_be_dealt_evenly_are_refused() -> None:
    with pytest.raises(UserError, match="3 groups per rank cannot be dealt evenly to 2 mini-batches") as caught:
        RolloutBatch.of(groups([[1, 1]] * 3), mini_batches=2, max_tokens=64)
    assert caught.value.field == "data.minibatches_per_rollout"


def test_a_filler_counts_nothing() -> None:
    source = make_micro_batch([rollout(1, 0, 2, 3), rollout(1, 1, 2, 2)])
    source.old_logprobs = torch.zeros(2, 3)
    blank = filler(source)
    assert blank.weight == 0.0
    assert blank.input_ids.shape[0] == 1
    assert not blank.response_mask.any()
    assert blank.advantages.tolist() == [0.0]
    assert blank.old_logprobs is not None
    assert blank.old_logprobs.shape == (1, 3)
    assert source.response_mask.any()  # the row it was made from is untouched


@dataclasses.dataclass(slots=True)
class Grown(MicroBatch):
    """A micro-batch as somebody will write it: with one field more."""

    later: torch.Tensor | None = None


def test_a_filler_has_one_row_of_every_tensor_also_of_one_that_is_added_later() -> None:
    made = make_micro_batch([rollout(1, 0, 2, 3), rollout(1, 1, 2, 2)])
    known = {f.name: getattr(made, f.name) for f in dataclasses.fields(made)}
    none = ("host", "no_gradient")
    absent = {name: torch.ones(2, 3) for name, value in known.items() if value is None and name not in none}
    source = Grown(**known | absent | {"no_gradient": (True, False)}, later=torch.arange(2))
    assert all(getattr(source, f.name) is not None for f in dataclasses.fields(source) if f.name != "host")
    source.host = source.on_host()
    blank = filler(source)
    assert blank.weight == 0.0
    assert blank.host is None  # of other rows
    assert blank.no_gradient is None  # ranks wait for each other's gradients
    for f in dataclasses.fields(source):
        whole = getattr(source, f.name)
        if isinstance(whole, torch.Tensor):
            cut = torch.zeros_like(whole[:1]) if f.name in ("response_mask", "advantages") else whole[:1]
            assert torch.equal(getattr(blank, f.name), cut), f.name


def test_state_round_trip_through_a_weights_only_file(tmp_path: Path) -> None:
    source = make_micro_batch([rollout(1, 0, 2, 3), rollout(1, 1, 2, 2, reward=None)])
    torch.save(source.state_dict(), tmp_path / "m.pt")
    again = MicroBatch.from_state_dict(torch.load(tmp_path / "m.pt", weights_only=True))
    for name, value in source.state_dict().items():
        found = getattr(again, name)
        assert torch.equal(found, value) if isinstance(value, torch.Tensor) else found == value
