"""Values worked out by hand."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import gradcheck

from gspo_lightning.objectives import (
    DAPO,
    GMPO,
    GRPO,
    GSPO,
    GSPOToken,
    Objective,
)
from tests.objectives.reference_formulas import BY_HAND, CASES, FAMILY, NAMES, example, rows_of, run


def test_every_objective_that_is_registered_has_an_equation_and_a_loss_worked_out_by_hand() -> None:
    assert {type(objective) for objective, _ in BY_HAND} == set(FAMILY.values())
    assert {type(case.objective) for case in CASES.values()} == set(FAMILY.values())


@pytest.mark.parametrize(("objective", "expected"), BY_HAND, ids=lambda v: repr(v))
def test_loss_is_the_one_worked_out_by_hand(objective: Objective, expected: float) -> None:
    out = objective(*example())
    assert out.loss.dtype == torch.float64
    assert out.loss.item() == pytest.approx(expected, abs=1e-9, rel=0)


def test_gspo_ratio_clipping_and_gradient_by_hand() -> None:
    out, grad = run(GSPO(0.2, 0.2), *example())
    s = torch.tensor([1.0512710964, 0.8187307531, 1.1051709181], dtype=torch.float64)
    assert torch.allclose(out.ratio, s, atol=1e-10, rtol=0)
    assert not out.clipped.any()
    # d(-s_i A_i / 3) / d log pi(y_it) = -s_i A_i / (3 n_i), the same for every token of a sequence
    expected = [[-0.0876059247] * 4, [0.2729102510] * 2 + [0.0] * 2, [-0.0613983843] * 3 + [0.0]]
    assert torch.allclose(grad, torch.tensor(expected, dtype=torch.float64), atol=1e-9, rtol=0)


def test_gspo_with_every_sequence_clipped_has_no_gradient_at_all() -> None:
    out, grad = run(GSPO(0.04, 0.05), *example())
    assert out.clipped.tolist() == [True, True, True]
    assert grad.abs().max() == 0


def test_grpo_clips_single_tokens_by_hand() -> None:
    out, grad = run(GRPO(0.2, 0.2), *example())
    # exp(.2) = 1.2214 > 1.2 with A = 1; exp(.3) = 1.35 > 1.2 with A = .5; exp(-.2) = .8187 > .8 is inside
    assert out.clipped.nonzero().tolist() == [[0, 2], [2, 1]]
    assert grad[0, 2] == 0
    assert grad[2, 1] == 0
    assert grad[0, 0].item() == pytest.approx(-1.1051709181 / 12, abs=1e-10)
    assert grad[1, 1].item() == pytest.approx(2 * 0.8187307531 / 6, abs=1e-10)


def test_clipping_respects_the_sign_of_the_advantage() -> None:
    """Outside the band alone is not clipped: the pessimistic branch keeps its gradient."""
    old = torch.zeros(4, 1, dtype=torch.float64)
    new = torch.tensor([[0.5], [0.5], [-0.5], [-0.5]], dtype=torch.float64)
    mask = torch.ones(4, 1, dtype=torch.bool)
    for objective in (GSPO(), GSPOToken(), GRPO(), GMPO(), DAPO()):
        out, grad = run(objective, new, old, torch.tensor([1.0, -1.0, 1.0, -1.0]).double(), mask)
        assert out.clipped.flatten().tolist() == [True, False, False, True]
        assert (grad.flatten() == 0).tolist() == [True, False, False, True]
        assert out.sums["outside_band"][0] == 4
        assert out.sums["clip_fraction_high"][0] == 1
        assert out.sums["clip_fraction_low"][0] == 1


def test_a_ratio_exactly_on_the_bound_keeps_its_gradient() -> None:
    objective = GRPO(clip_low=0.5, clip_high=1.0)
    new = torch.tensor([[2.0, 0.5]], dtype=torch.float64).log()
    # exp(log 2) is exactly 2 in float64, and exp(log 0.5) exactly 0.5
    for advantage, at in ((1.0, 0), (-1.0, 1)):
        out, grad = run(objective, new, torch.zeros(1, 2).double(), torch.tensor([advantage]).double(), new < 9)
        assert not out.clipped[0, at]
        assert grad[0, at] != 0


@pytest.mark.parametrize("name", NAMES)
def test_example_agrees_with_the_equation(name: str) -> None:
    objective, reference, *_ = CASES[name]
    new, old, advantages, mask = example()
    out, grad = run(objective, new, old, advantages, mask)
    expected = reference(rows_of(new, old, advantages, mask))
    (expected_grad,) = torch.autograd.grad(expected, new)
    assert torch.allclose(out.loss, expected, atol=1e-12, rtol=0)
    assert torch.allclose(grad, expected_grad, atol=1e-12, rtol=0)


@pytest.mark.parametrize("name", [name for name in NAMES if not CASES[name].stop_gradient])
def test_gradient_is_that_of_finite_differences(name: str) -> None:
    """The ones without a stop-gradient; the example has no ratio on a kink for these ranges."""
    objective = CASES[name].objective
    new, old, advantages, mask = example()
    assert gradcheck(lambda x: objective(x, old, advantages, mask).loss, (new,), eps=1e-6, atol=1e-8)
