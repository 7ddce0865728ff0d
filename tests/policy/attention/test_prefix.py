"""Shared-prefix attention against dense attention with an explicit mask: values and gradients."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from gspo_lightning.core.types import FinishReason, Prompt, Rollout
from gspo_lightning.policy.attention import PackedLayout, attention_plan, check_attention, kernels, plans
from gspo_lightning.policy.attention.interface import UnsupportedAttentionError
from gspo_lightning.policy.attention.plans import PrefixPlan, dense_attention
from gspo_lightning.policy.packing.batches import make_micro_batch
from gspo_lightning.policy.packing.memory import cut_rows

CASES = {
    "one prompt, one response": {0: (4, [3])},
    "a prompt of one token, a response of one": {0: (1, [1]), 1: (3, [2, 1])},
    "nothing but responses of one token": {0: (2, [1, 1]), 1: (3, [1])},
    "ragged": {0: (5, [4, 9, 1, 2]), 1: (2, [7]), 2: (11, [3, 3, 12])},
    "many buckets": {0: (3, [1, 2, 4, 8, 16, 32])},
}


def layout_of(case: dict[int, tuple[int, list[int]]], shuffled: bool = False) -> PackedLayout:
    rows = []
    for number, (width, lengths) in case.items():
        prompt = Prompt(number, "", tuple(range(10 * number + 1, 10 * number + 1 + width)))
        for k, length in enumerate(lengths):
            ids = torch.arange(100 * number + 10 * k, 100 * number + 10 * k + length)
            mask = torch.ones(length, dtype=torch.bool)
            rows.append(Rollout(prompt, k, ids, torch.zeros(length), mask, FinishReason.STOP, 0, reward=0.0))
    if shuffled:
        rows = [rows[i] for i in torch.randperm(len(rows), generator=torch.Generator().manual_seed(1)).tolist()]
    return PackedLayout.of(make_micro_batch(rows))


def test_the_check_of_a_device_notices_a_kernel_without_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    check_attention(cpu, (4, 2), 16, torch.float32)
    monkeypatch.setattr(plans, "PrefixPlan", lambda *rows: PrefixPlan(*rows[:3]))  # not the fourth: blocks
    with pytest.raises(UnsupportedAttentionError, match="whose values are off"):
        check_attention(cpu, (4, 2), 16, torch.float32)


@pytest.mark.parametrize("waste", [(1.0, 0), (1.2, 128), (100.0, 0)], ids=["many buckets", "default", "one bucket"])
@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (6, 1)])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_values_and_gradients_are_those_of_dense_attention(
    case: dict[int, tuple[int, list[int]]],
    heads: tuple[int, int],
    waste: tuple[float, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kernels, "WASTE", waste[0])
    monkeypatch.setattr(kernels, "SPARE", waste[1])
    layout = layout_of(case)
    torch.manual_seed(0)
    size = len(layout.token_ids)
    inputs = [torch.randn(size, h, 8, dtype=torch.float64, requires_grad=True) for h in (heads[0], heads[1], heads[1])]
    places = layout.segments, layout.crossings
    plan = attention_plan(*places, layout.longest, torch.device("cpu"))
    ours, theirs = plan.attend(0, *inputs, 0.3), dense_attention(*places, *inputs, 0.3)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
    weights = torch.randn_like(ours)
    for mine, expected in zip(
        torch.autograd.grad((ours * weights).sum(), inputs),
        torch.autograd.grad((theirs * weights).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(mine, expected, rtol=0, atol=1e-11)


@pytest.mark.parametrize("heads", [(4, 4), (6, 1)])
def test_tokens_of_a_picture_see_each_other(heads: tuple[int, int]) -> None:
    layout = layout_of({0: (9, [3, 1]), 1: (4, [2]), 2: (12, [5]), 3: (6, [2])})
    pictures = [(1, 4), (6, 3), (13, 8)]  # two of the first prompt, the beginning of the third
    torch.manual_seed(0)
    size = len(layout.token_ids)
    inputs = [torch.randn(size, h, 8, dtype=torch.float64, requires_grad=True) for h in (heads[0], heads[1], heads[1])]
    places = layout.segments, layout.crossings
    plan = attention_plan(*places, layout.longest, torch.device("cpu"), pictures)
    ours, theirs = plan.attend(0, *inputs, 0.3), dense_attention(*places, *inputs, 0.3, pictures)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
    assert (theirs - dense_attention(*places, *inputs, 0.3)).abs().max() > 0.1
    weights = torch.randn_like(ours)
    mine, expected = (torch.autograd.grad((out * weights).sum(), inputs) for out in (ours, theirs))
    for gradient, other in zip(mine, expected, strict=True):
        torch.testing.assert_close(gradient, other, rtol=0, atol=1e-11)


def test_the_order_of_rows_changes_nothing_but_their_place() -> None:
    case = CASES["ragged"]
    plain, shuffled = layout_of(case), layout_of(case, shuffled=True)
    assert sorted(plain.token_ids.tolist()) == sorted(shuffled.token_ids.tolist())
    assert sorted(plain.targets.tolist()) == sorted(shuffled.targets.tolist())
    assert {n for _, n in plain.segments} == {n for _, n in shuffled.segments}


def test_a_small_layout_by_hand() -> None:
    layout = layout_of({0: (2, [3, 1]), 1: (1, [2])})
    # prompts 1 2 | 11, then the responses 0 1 2 | 10 | 100 101 without their last tokens
    assert layout.token_ids.tolist() == [1, 2, 11, 0, 1, 100]
    assert layout.positions.tolist() == [0, 1, 0, 2, 3, 1]
    assert layout.predicts.tolist() == [1, 3, 4, 1, 2, 5]
    assert layout.targets.tolist() == [0, 1, 2, 10, 100, 101]
    assert layout.rows.tolist() == [0, 0, 0, 1, 2, 2]
    assert layout.steps.tolist() == [0, 1, 2, 0, 0, 1]
    assert layout.segments == [(0, 2), (2, 1), (3, 2), (5, 1)]
    assert layout.crossings == [(3, 2, 0, 2), (5, 1, 2, 1)]
    assert layout.longest == 5


def test_a_batch_that_does_not_say_who_shares_repeats_its_prompts() -> None:
    rows = [
        Rollout(Prompt(0, "", (1, 2)), k, torch.tensor([5, 6]), None, torch.ones(2).bool(), FinishReason.STOP, 0)
        for k in range(2)
    ]
    batch = make_micro_batch(rows)
    assert len(PackedLayout.of(batch).token_ids) == 2 + 1 + 1
    batch.prompt_index = None
    assert len(PackedLayout.of(batch).token_ids) == 2 + 2 + 1 + 1


def test_pieces_of_a_batch_that_has_moved_have_layouts_of_their_own() -> None:
    rows = [
        Rollout(Prompt(0, "", (1, 2)), k, torch.arange(5, 7 + k), None, torch.ones(2 + k).bool(), FinishReason.STOP, 0)
        for k in range(2)
    ]
    batch = make_micro_batch(rows).to("cpu")
    pieces = cut_rows(batch, 1, packed=True)
    assert [PackedLayout.of(piece).targets.tolist() for piece in pieces] == [[5, 6], [5, 6, 7]]
    with pytest.raises(ValueError, match="host has 2 rows, response_mask 1"):
        dataclasses.replace(pieces[0], host=batch.host)


def test_a_layout_reads_nothing_back_from_the_device() -> None:
    """A tensor on the meta device has no data: reading it back would raise, as it would wait on a GPU."""
    rows = [
        Rollout(Prompt(0, "", (1, 2)), k, torch.tensor([5, 6, 7]), None, torch.ones(3).bool(), FinishReason.STOP, 0)
        for k in range(2)
    ]
    batch = make_micro_batch(rows)
    here, there = PackedLayout.of(batch), PackedLayout.of(batch.to("meta"))
    assert (there.segments, there.crossings, there.longest) == (here.segments, here.crossings, here.longest)
    assert there.token_ids.device.type == there.targets.device.type == "meta"
    assert there.predicts.shape == here.predicts.shape
