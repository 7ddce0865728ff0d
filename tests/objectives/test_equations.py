"""Random data of any shape: loss and gradient are those of the equations, and do not depend on the layout."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.objectives.reference_formulas import CASES, NAMES, make_batch, rows_of, run

LENGTHS = st.lists(st.integers(0, 6), min_size=1, max_size=5).filter(any)
FAST = settings(max_examples=25, deadline=None)


@pytest.mark.parametrize("name", NAMES)
@FAST
@given(seed=st.integers(0, 10_000), lengths=LENGTHS, scale=st.sampled_from([1e-4, 0.1, 0.5]))
def test_loss_and_gradient_are_those_of_the_equation(name: str, seed: int, lengths: list[int], scale: float) -> None:
    objective, reference, *_ = CASES[name]
    new, old, advantages, mask = make_batch(seed, lengths, scale=scale)
    out, grad = run(objective, new, old, advantages, mask)
    leaf = new.clone().requires_grad_()
    expected = reference(rows_of(leaf, old, advantages, mask))
    (expected_grad,) = torch.autograd.grad(expected, leaf)
    assert torch.allclose(out.loss, expected, atol=1e-11, rtol=1e-11)
    assert torch.allclose(grad, expected_grad, atol=1e-12, rtol=1e-11)


PER_TOKEN = [n for n in NAMES if CASES[n].objective.per_token_advantages]


@pytest.mark.parametrize("name", PER_TOKEN)
@FAST
@given(seed=st.integers(0, 10_000), lengths=LENGTHS)
def test_advantages_may_differ_per_token(name: str, seed: int, lengths: list[int]) -> None:
    objective, reference, *_ = CASES[name]
    new, old, advantages, mask = make_batch(seed, lengths, per_token=True)
    out, grad = run(objective, new, old, advantages, mask)
    leaf = new.clone().requires_grad_()
    expected = reference(rows_of(leaf, old, advantages, mask))
    (expected_grad,) = torch.autograd.grad(expected, leaf)
    assert torch.allclose(out.loss, expected, atol=1e-11, rtol=1e-11)
    assert torch.allclose(grad, expected_grad, atol=1e-12, rtol=1e-11)
    assert (grad[out.clipped] == 0).all()


@pytest.mark.parametrize("name", NAMES)
@FAST
@given(seed=st.integers(0, 10_000), lengths=LENGTHS)
def test_clipped_is_true_exactly_where_the_gradient_is_zero(name: str, seed: int, lengths: list[int]) -> None:
    objective = CASES[name].objective
    new, old, advantages, mask = make_batch(seed, lengths)
    out, grad = run(objective, new, old, advantages, mask)
    clipped = out.clipped if out.clipped.ndim == 2 else out.clipped.unsqueeze(-1) & mask
    live = (advantages != 0).unsqueeze(-1) & mask
    assert ((grad == 0) & live).equal(clipped & live), name
    assert not (clipped & ~live).any(), name
    zero, count = out.sums["zero_gradient_tokens"]
    assert zero == ((grad == 0) & mask).sum()
    assert count == mask.sum()


@pytest.mark.parametrize("name", NAMES)
@FAST
@given(seed=st.integers(0, 10_000), lengths=LENGTHS, cut=st.integers(0, 5))
def test_micro_batches_add_up_to_the_mini_batch(name: str, seed: int, lengths: list[int], cut: int) -> None:
    objective = CASES[name].objective
    new, old, advantages, mask = make_batch(seed, lengths)
    whole, whole_grad = run(objective, new, old, advantages, mask)
    parts = [slice(0, cut), slice(cut, None)]  # either may be empty or select nothing
    total = sum(objective.count(mask[p]) for p in parts)
    results = [run(objective, new[p], old[p], advantages[p], mask[p], denominator=total) for p in parts]
    assert torch.allclose(sum(out.loss for out, _ in results), whole.loss, atol=1e-13, rtol=1e-13)
    # not bit-equal: vectorised kernels round the tail of another shape differently
    assert torch.allclose(torch.cat([grad for _, grad in results]), whole_grad, atol=0, rtol=1e-14)
    for key, (value, count) in whole.sums.items():
        assert torch.allclose(sum(out.sums[key][0] for out, _ in results), value, atol=1e-12), key
        assert sum(out.sums[key][1] for out, _ in results) == count, key


@pytest.mark.parametrize("name", NAMES)
@FAST
@given(seed=st.integers(0, 10_000), lengths=LENGTHS, left=st.integers(0, 3), right=st.integers(0, 3))
def test_padding_and_row_order_do_not_matter(name: str, seed: int, lengths: list[int], left: int, right: int) -> None:
    objective = CASES[name].objective
    new, old, advantages, mask = make_batch(seed, lengths)
    out, grad = run(objective, new, old, advantages, mask)
    order = torch.randperm(len(lengths), generator=torch.Generator().manual_seed(seed))
    moved = [torch.nn.functional.pad(x, (left, right))[order] for x in (new, old, mask)]
    other, other_grad = run(objective, moved[0], moved[1], advantages[order], moved[2])
    width = new.shape[1]
    assert torch.allclose(other.loss, out.loss, atol=1e-13, rtol=1e-13)
    assert torch.allclose(other_grad[:, left : left + width], grad[order], atol=1e-14, rtol=1e-13)
    assert other_grad[~moved[2]].abs().sum() == 0


@pytest.mark.parametrize("garbage", [float("nan"), float("inf"), -float("inf"), 1e30, -1e30])
@pytest.mark.parametrize("name", NAMES)
def test_values_at_masked_positions_change_no_bit(name: str, garbage: float) -> None:
    objective = CASES[name].objective
    for dtype in (torch.float64, torch.float32):
        new, old, advantages, mask = make_batch(5, [3, 0, 1, 5])
        new, old, advantages = new.to(dtype), old.to(dtype), advantages.to(dtype)
        out, grad = run(objective, new, old, advantages, mask)
        empty = ~mask.any(dim=-1)
        dirty, dirty_grad = run(
            objective,
            torch.where(mask, new, garbage),
            torch.where(mask, old, -garbage),
            torch.where(empty, garbage, advantages),
            mask,
        )
        assert torch.equal(dirty.loss, out.loss)
        assert torch.equal(dirty_grad, grad)
        assert dirty_grad[~mask].abs().sum() == 0
        assert torch.equal(dirty.ratio, out.ratio)
        assert torch.equal(dirty.clipped, out.clipped)
        assert all(torch.equal(a, b) for k in out.sums for a, b in zip(out.sums[k], dirty.sums[k], strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_empty_rows_contribute_exactly_nothing(name: str) -> None:
    objective = CASES[name].objective
    new, old, advantages, mask = make_batch(7, [2, 0, 4, 0])
    out, grad = run(objective, new, old, advantages, mask)
    keep = mask.any(dim=-1)
    short, short_grad = run(objective, new[keep], old[keep], advantages[keep], mask[keep])
    assert torch.allclose(out.loss, short.loss, atol=1e-15, rtol=1e-14)
    assert torch.allclose(grad[keep], short_grad, atol=0, rtol=1e-14)
    assert grad[~keep].abs().sum() == 0
    assert torch.equal(objective.count(mask), objective.count(mask[keep]))
    none, none_grad = run(objective, new, old, advantages, torch.zeros_like(mask), denominator=3.0)
    assert none.loss == 0
    assert none_grad.abs().sum() == 0
    nowhere, _ = run(objective, new, old, advantages, torch.zeros_like(mask), denominator=torch.tensor(0.0))
    assert nowhere.loss == 0


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("step", [200.0, -200.0, 1e4])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_far_log_ratios_stay_finite_and_are_counted(name: str, step: float, sign: float) -> None:
    objective = CASES[name].objective
    for dtype in (torch.float32, torch.float64):
        old = torch.full((2, 3), -1.0, dtype=dtype)
        mask = torch.tensor([[True, True, True], [True, False, False]])
        out, grad = run(objective, old + step, old, torch.tensor([sign, -sign], dtype=dtype), mask)
        assert torch.isfinite(out.loss)
        assert torch.isfinite(grad).all()
        assert all(torch.isfinite(value).all() for value, _ in out.sums.values())
        assert out.sums["clamped_ratios"][0] == out.sums["clamped_ratios"][1]


@pytest.mark.parametrize("name", NAMES)
def test_computes_in_float32_or_wider(name: str) -> None:
    objective = CASES[name].objective
    new, old, advantages, mask = make_batch(3, [3, 2])
    half, grad = run(objective, new.bfloat16(), old.bfloat16(), advantages.bfloat16(), mask)
    assert half.loss.dtype == torch.float32
    assert half.ratio.dtype == torch.float32
    assert grad.dtype == torch.bfloat16
    exact, _ = run(objective, new.bfloat16().float(), old.bfloat16().float(), advantages.bfloat16().float(), mask)
    assert torch.equal(half.loss, exact.loss)
    wide, _ = run(objective, new, old, advantages.float(), mask)
    assert wide.loss.dtype == torch.float64
    assert all(v.dtype == torch.float64 and v.ndim == 0 for pair in wide.sums.values() for v in pair)
    assert not any(v.requires_grad for pair in wide.sums.values() for v in pair)


@pytest.mark.parametrize("name", NAMES)
def test_no_value_is_read_back_from_a_device(name: str) -> None:
    """On the meta device every read raises: a call never makes a GPU wait."""
    new, old, advantages, mask = (x.to("meta") for x in make_batch(3, [3, 2]))
    objective = CASES[name].objective
    out, grad = run(objective, new, old, advantages, mask, denominator=objective.count(mask))
    assert out.loss.device == grad.device == torch.device("meta")
    assert all(v.device == torch.device("meta") for pair in out.sums.values() for v in pair)


@pytest.mark.parametrize("name", NAMES)
def test_only_the_policy_gets_a_gradient(name: str) -> None:
    new, old, advantages, mask = make_batch(3, [3, 2])
    old.requires_grad_()
    advantages.requires_grad_()
    new.requires_grad_()
    CASES[name].objective(new, old, advantages, mask).loss.backward()
    assert new.grad is not None
    assert old.grad is None
    assert advantages.grad is None


@pytest.mark.parametrize("name", NAMES)
def test_on_policy_gradient_is_reinforce_with_the_objectives_weights(name: str) -> None:
    objective = CASES[name].objective
    lengths = torch.tensor([3, 1, 3, 1])
    mask = torch.arange(4) < lengths.unsqueeze(-1)
    old = -torch.rand(4, 4, generator=torch.Generator().manual_seed(0)).double()
    advantages = torch.tensor([1.0, -1.0, -1.0, 1.0]).double()
    out, grad = run(objective, old, old, advantages, mask)
    weights = {
        "sequence_mean": 1 / lengths.double() / 4,
        "sequence_sum": torch.full((4,), 1 / 4).double(),
        "token_mean": torch.full((4,), 1 / 8).double(),
    }[objective.aggregation.value]
    if (weight := CASES[name].weight) is not None:
        weights = torch.full((4,), weight, dtype=torch.float64)
    expected = torch.where(mask, (-advantages * weights).unsqueeze(-1), 0.0)
    assert torch.allclose(grad, expected, atol=1e-13, rtol=0)
    assert not out.clipped.any()
    assert torch.equal(out.ratio, torch.ones_like(out.ratio))
    if CASES[name].zero_on_policy:
        assert out.loss.abs() < 1e-16
    assert grad.abs().max() > 0.03
