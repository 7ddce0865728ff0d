"""Objectives that must coincide at an end of their range, and options of one objective."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gspo_lightning.objectives import (
    DAPO,
    GRPO,
    GSPO,
    LUSPO,
    PPO,
    REINFORCE,
    DrGRPO,
    GSPOToken,
    MultiScale,
    Objective,
    Segment,
    segments_by_delimiter,
    segments_by_length,
    segments_by_turn,
)
from tests.objectives.reference_formulas import example, make_batch, run

LENGTHS = st.lists(st.integers(0, 6), min_size=1, max_size=5).filter(any)
FAST = settings(max_examples=25, deadline=None)


def assert_same(one: Objective, other: Objective, seed: int, lengths: list[int], *, per_token: bool = False) -> None:
    new, old, advantages, mask = make_batch(seed, lengths, scale=0.2, per_token=per_token)
    a, a_grad = run(one, new, old, advantages, mask)
    b, b_grad = run(other, new, old, advantages, mask)
    assert (a.loss - b.loss).abs() <= 1e-12
    assert (a_grad - b_grad).abs().max() <= 1e-12

    def tokens(x: torch.Tensor) -> torch.Tensor:
        return x if x.ndim == 2 else x.unsqueeze(-1) & mask

    assert torch.equal(tokens(a.clipped), tokens(b.clipped))
    if one.level == other.level:
        assert a.sums.keys() == b.sums.keys()
        for key in a.sums.keys() - {"clamped_ratios"}:  # counts what was clamped, at the level of the ratio
            assert torch.allclose(a.sums[key][0], b.sums[key][0], atol=1e-12), key
            assert a.sums[key][1] == b.sums[key][1], key


@FAST
@given(seed=st.integers(0, 10_000), lengths=LENGTHS)
def test_gspo_token_with_one_advantage_per_sequence_is_gspo(seed: int, lengths: list[int]) -> None:
    assert_same(GSPO(0.05, 0.06), GSPOToken(0.05, 0.06), seed, lengths)
    assert_same(GSPO(dual_clip=1.05), GSPOToken(dual_clip=1.05), seed, lengths)


@FAST
@given(seed=st.integers(0, 10_000), lengths=LENGTHS)
def test_one_segment_is_gspo_and_one_token_per_segment_is_grpo(seed: int, lengths: list[int]) -> None:
    assert_same(GSPO(0.05, 0.06), Segment(0.05, 0.06, segment_length=100), seed, lengths)
    assert_same(GSPO(0.05, 0.06), Segment(0.05, 0.06, by="turn"), seed, lengths)
    assert_same(GSPOToken(0.05, 0.06), Segment(0.05, 0.06, by="turn"), seed, lengths, per_token=True)
    assert_same(GRPO(0.05, 0.06), Segment(0.05, 0.06, segment_length=1), seed, lengths)
    assert_same(GRPO(0.05, 0.06), Segment(0.05, 0.06, segment_length=1), seed, lengths, per_token=True)


@FAST
@given(seed=st.integers(0, 10_000), lengths=LENGTHS)
def test_multi_scale_ends_at_gspo_and_grpo(seed: int, lengths: list[int]) -> None:
    assert_same(GSPO(0.05, 0.06), MultiScale(1.0, 0.05, 0.06), seed, lengths)
    assert_same(GRPO(0.05, 0.06), MultiScale(0.0, 0.05, 0.06), seed, lengths)


@FAST
@given(seed=st.integers(0, 10_000), lengths=LENGTHS)
def test_token_objectives_differ_by_their_denominator_only(seed: int, lengths: list[int]) -> None:
    new, old, advantages, mask = make_batch(seed, lengths)
    dapo, dapo_grad = run(DAPO(0.2, 0.3), new, old, advantages, mask)
    ppo, ppo_grad = run(PPO(0.2, 0.3), new, old, advantages, mask)
    _, dr_grad = run(DrGRPO(10, 0.2, 0.3), new, old, advantages, mask)
    assert torch.equal(dapo.loss, ppo.loss)
    assert torch.equal(dapo_grad, ppo_grad)
    rows = mask.any(dim=-1).sum()
    assert torch.allclose(dr_grad * rows * 10, dapo_grad * mask.sum(), atol=1e-12)


def test_equal_lengths_make_luspo_gspo_times_the_length() -> None:
    new, old, advantages, mask = make_batch(1, [4, 4, 4])
    gspo, gspo_grad = run(GSPO(0.05, 0.06), new, old, advantages, mask)
    luspo, luspo_grad = run(LUSPO(0.05, 0.06), new, old, advantages, mask)
    assert torch.allclose(luspo.loss, 4 * gspo.loss)
    assert torch.allclose(luspo_grad, 4 * gspo_grad)


@pytest.mark.parametrize(
    ("norm", "divisors"),
    [
        ("mean", [4, 2, 3]),
        (1, [4, 2, 3]),
        ("sum", [1, 1, 1]),
        (0.0, [1, 1, 1]),
        ("sqrt", [2, 2**0.5, 3**0.5]),
        (2.0, [16, 4, 9]),
        ("adaptive", [6, 18**0.5, 27**0.5]),
    ],
)
def test_length_norm_divides_the_summed_log_ratio(norm: str | float, divisors: list[float]) -> None:
    out, grad = run(GSPO(0.9, 9.0, length_norm=norm, adaptive_length=9.0), *example())
    summed = torch.tensor([0.2, -0.4, 0.3], dtype=torch.float64)
    expected = torch.exp(summed / torch.tensor(divisors, dtype=torch.float64))
    assert torch.allclose(out.ratio, expected, atol=1e-14)
    assert grad[1, 0].item() == pytest.approx(2 * expected[1].item() / divisors[1] / 3, abs=1e-12)


def test_adaptive_norm_is_the_mean_at_its_length() -> None:
    new, old, advantages, mask = make_batch(1, [4, 4])
    a, b = (GSPO(length_norm=n, adaptive_length=4.0)(new, old, advantages, mask).ratio for n in ("mean", "adaptive"))
    assert torch.allclose(a, b, atol=1e-15)


def test_adaptive_norm_is_the_same_word_from_a_file() -> None:
    word = "".join(["adap", "tive"])  # equal to the word in the source, but another object
    objective = GSPO(0.2, 0.2, length_norm=word, adaptive_length=9.0)
    expected = [math.exp(0.2 / 6), math.exp(-0.4 / 18**0.5), math.exp(0.3 / 27**0.5)]  # 4, 2 and 3 tokens
    assert objective(*example()).ratio.tolist() == pytest.approx(expected, abs=1e-14)
    assert objective.unusual_clip() is not None


def test_dual_clip_bounds_the_loss_of_negative_advantages() -> None:
    old = torch.zeros(3, 1, dtype=torch.float64)
    new = torch.tensor([[2.0], [2.0], [0.5]], dtype=torch.float64)  # ratios 7.39, 7.39, 1.65
    args = (new, old, torch.tensor([-2.0, 2.0, -2.0]).double(), torch.ones(3, 1, dtype=torch.bool))
    for objective in (GSPO(dual_clip=3.0), GRPO(dual_clip=3.0), GSPOToken(dual_clip=3.0)):
        out, grad = run(objective, *args)
        assert out.clipped.flatten().tolist() == [True, True, False]
        assert (grad.flatten() == 0).tolist() == [True, True, False]
        high = 1 + objective.clip_high
        assert out.loss.item() == pytest.approx((3 * 2 - high * 2 + 2 * 2.718281828459045**0.5) / 3, abs=1e-12)
        assert out.sums["clip_fraction_dual"][0] == 1
        assert out.sums["clip_fraction_high"][0] == 1


@pytest.mark.parametrize(
    ("reduction", "weights", "count"),
    [("sequence_sum", [1, 1, 1], 3), ("sequence_mean", [1 / 4, 1 / 2, 1 / 3], 3), ("token_mean", [1, 1, 1], 9)],
)
def test_reinforce_reductions(reduction: str, weights: list[float], count: int) -> None:
    objective = REINFORCE(reduction)
    new, old, advantages, mask = example()
    _, grad = run(objective, new, old, advantages, mask)
    assert objective.count(mask) == count
    expected = -advantages * torch.tensor(weights, dtype=torch.float64) / count
    assert torch.allclose(grad, torch.where(mask, expected.unsqueeze(-1), 0.0), atol=1e-15)


def test_segments_count_only_response_tokens() -> None:
    mask = torch.tensor([[False, True, True, False, True, True, True, False]])
    assert segments_by_length(mask, 2)[mask].tolist() == [0, 0, 1, 1, 2]
    assert segments_by_turn(mask)[mask].tolist() == [0, 0, 1, 1, 1]
    ids = torch.tensor([[9, 1, 9, 9, 1, 8, 1, 9]])
    assert segments_by_delimiter(ids, mask, [8, 9])[mask].tolist() == [0, 0, 1, 1, 2]


def test_given_segments_have_one_ratio_each() -> None:
    new, old, advantages, mask = example()
    segments = torch.tensor([[0, 0, 3, 3], [1, 0, 7, 7], [0, 0, 0, -5]])  # values at masked positions are not read
    out, grad = run(Segment(0.5, 0.5, by="given"), new, old, advantages, mask, segments=segments)
    log = torch.tensor([[0.0, 0.0, 0.1, 0.1], [0.0, -0.2, 0.0, 0.0], [0.1, 0.1, 0.1, 0.0]], dtype=torch.float64)
    log[1] = torch.tensor([-0.2, -0.2, 0.0, 0.0])
    assert torch.allclose(out.ratio, log.exp(), atol=1e-12)
    lengths = torch.tensor([4.0, 2.0, 3.0]).double()
    assert torch.allclose(grad, torch.where(mask, -(advantages / lengths / 3).unsqueeze(-1) * log.exp(), 0.0))
