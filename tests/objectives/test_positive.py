"""The likelihood of correct responses as a term of any objective: values by hand, finite differences, any cut."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from gspo_lightning.core.errors import UserError
from gspo_lightning.objectives import DAPO, GSPO, Objective
from gspo_lightning.objectives.aggregate import count_positive
from tests.objectives.reference_formulas import CASES, NAMES, example, run

MASK = torch.tensor([[True, True, False], [True, False, False], [True, False, True]])
NEW = torch.tensor([[-1.0, -2.0, 9.0], [-0.5, 9.0, 9.0], [-0.25, math.nan, -3.0]], dtype=torch.float64)
POSITIVE = torch.tensor([True, False, True])
NO_REWARD = torch.zeros(3, dtype=torch.float64)
NONE = torch.zeros(3, dtype=torch.bool)


def gspo(coef: float, new: Tensor = NEW, **given: Any) -> Any:
    return GSPO(positive_nll_coef=coef)(new, new.detach(), NO_REWARD, MASK, **({"positive": POSITIVE} | given))


def with_coef(name: str, coef: float) -> Objective:
    return dataclasses.replace(CASES[name].objective, positive_nll_coef=coef)


def test_value_gradient_and_measurements_by_hand() -> None:
    """Tokens of correct responses: 1 and 2 nats in the first row, 0.25 and 3 in the third; 4 of 5 tokens."""
    new = NEW.clone().requires_grad_()
    out = gspo(0.1, new)
    assert float(out.loss) == pytest.approx(0.1 * 6.25 / 4)
    (gradient,) = torch.autograd.grad(out.loss, new)
    wanted = torch.tensor([[-1.0, -1.0, 0.0], [0.0, 0.0, 0.0], [-1.0, 0.0, -1.0]], dtype=torch.float64) * 0.1 / 4
    assert torch.equal(gradient, wanted)
    assert tuple(map(float, out.sums["positive_nll"])) == (6.25, 4.0)
    assert tuple(map(float, out.sums["positive_tokens"])) == (4.0, 5.0)
    assert not any(number.requires_grad for pair in out.sums.values() for number in pair)


def test_positive_term_keeps_the_metrics_of_other_terms() -> None:
    sums = GSPO(positive_nll_coef=0.1, distill_coef=0.1, correction="sequence")(
        NEW, NEW, NO_REWARD, MASK, positive=POSITIVE, behaviour_logprobs=NEW, teacher_logprobs=NEW
    ).sums
    assert {"positive_nll", "correction_weight", "kl_new_teacher"} <= set(sums)


@pytest.mark.parametrize("name", NAMES)
def test_positive_term_adds_the_same_to_every_objective(name: str) -> None:
    """Whatever divides the objective's own loss."""
    new, old, advantages, mask = example()
    positive = torch.tensor([False, True, True])
    plain, own = run(with_coef(name, 0.0), new, old, advantages, mask)
    out, gradient = run(with_coef(name, 0.3), new, old, advantages, mask, positive=positive)
    nll = (0.9 + 1.5 + 0.2 + 0.1 + 0.6) / 5
    assert float(out.loss - plain.loss) == pytest.approx(0.3 * nll, rel=1e-12)
    chosen = (mask & positive.unsqueeze(-1)).double()
    assert torch.allclose(gradient - own, -0.3 * chosen / 5, atol=1e-12)
    assert torch.equal(out.ratio, plain.ratio)
    assert torch.equal(out.clipped, plain.clipped)


@pytest.mark.parametrize("name", ["gspo", "dapo"])
def test_gradient_is_that_of_finite_differences(name: str) -> None:
    new, old, advantages, mask = example()
    more: dict[str, Any] = {"positive": torch.tensor([True, False, True])}
    objective = dataclasses.replace(with_coef(name, 0.7), correction="sequence", opsm_delta=0.05)
    more |= {"behaviour_logprobs": old - 0.1}
    assert torch.autograd.gradcheck(lambda x: objective(x, old, advantages, mask, **more).loss, (new,), eps=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_without_a_correct_response_nothing_is_added_at_all(name: str) -> None:
    new, old, advantages, mask = example()
    for counts in ({}, {"denominator": 3.0, "positive_tokens": 0.0}):
        plain, own = run(with_coef(name, 0.0), new, old, advantages, mask, denominator=counts.get("denominator"))
        out, gradient = run(with_coef(name, 0.5), new, old, advantages, mask, positive=NONE, **counts)
        assert torch.equal(out.loss, plain.loss)
        assert torch.equal(gradient, own)
        assert tuple(map(float, out.sums["positive_nll"])) == (0.0, 0.0)


def test_a_correct_response_without_tokens_adds_nothing() -> None:
    """Masked, because it was cut."""
    out = GSPO(positive_nll_coef=1.0)(
        NEW, NEW, NO_REWARD, MASK & torch.tensor([[False], [True], [True]]), positive=torch.tensor([True, False, False])
    )
    assert float(out.loss) == 0.0


@pytest.mark.parametrize("cls", [GSPO, DAPO])
def test_pieces_add_up_to_the_whole(cls: type[Objective]) -> None:
    """A row, two rows that are no successes and padded further: the counts are those of the whole mini-batch."""
    new, old, advantages, mask = example()
    positive = torch.tensor([True, False, True])
    objective = cls(positive_nll_coef=0.4)
    whole, wanted = run(objective, new, old, advantages, mask, positive=positive)
    counts = {"denominator": objective.count(mask), "positive_tokens": count_positive(mask, positive)}
    assert float(counts["positive_tokens"]) == 7.0
    wide = torch.nn.functional.pad
    total, gradient = 0.0, torch.zeros_like(new)
    for rows, more in ((slice(0, 1), 0), (slice(1, 3), 5)):
        parts = [wide(x[rows].detach(), (0, more), value=7.0) for x in (new, old)]
        out, own = run(
            objective, *parts, advantages[rows], wide(mask[rows], (0, more)), positive=positive[rows], **counts
        )
        total += float(out.loss)
        gradient[rows] = own[:, : new.shape[1]]
    assert total == pytest.approx(float(whole.loss), rel=1e-12)
    assert torch.allclose(gradient, wanted, atol=1e-12)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"positive": None}, r"positive: is None, but positive_nll_coef=0.1 needs it, shape \[N\]"),
        ({"positive": MASK}, r"positive: has dtype torch.bool and shape \(3, 3\), but must be bool \[N\] = \(3,\)"),
        ({"positive": POSITIVE.double()}, "positive: has dtype torch.float64"),
        ({"denominator": 3.0}, "positive_tokens: is None, but denominator is given"),
        ({"positive_tokens": 3.0}, "denominator: is None, but positive_tokens is given"),
        ({"denominator": 3.0, "positive_tokens": -1.0}, "positive_tokens: is -1.0"),
        ({"denominator": 3.0, "positive_tokens": NO_REWARD}, r"positive_tokens: has shape \(3,\)"),
    ],
)
def test_calls_name_the_argument_and_the_rule(given: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        gspo(0.1, **given)
