"""On-policy distillation as a term of any objective: values by hand, and its gradient by enumerating a vocabulary."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from gspo_lightning.core.errors import UserError
from gspo_lightning.objectives import CISPO, DAPO, GRPO, GSPO, LUSPO, SAPO, GSPOToken, Objective

MASK = torch.tensor([[True, True, False], [True, False, False]])
NEW = torch.tensor([[-1.0, -2.0, 9.0], [-0.5, 9.0, 9.0]], dtype=torch.float64)
TEACHER = torch.tensor([[-1.5, -1.0, math.nan], [-0.7, math.inf, math.nan]], dtype=torch.float64)
NO_REWARD = torch.zeros(2, dtype=torch.float64)


def loss(objective: Objective, new: Tensor, old: Tensor | None = None, **more: Any) -> Tensor:
    old = new.detach() if old is None else old
    return objective(new, old, NO_REWARD, MASK, **more).loss


def test_value_and_gradient_of_the_sampled_term_by_hand() -> None:
    """Differences to the teacher: 0.5 and -1 in the first row, 0.2 in the second."""
    new = NEW.clone().requires_grad_()
    value = loss(GSPO(distill_coef=3.0), new, teacher_logprobs=TEACHER)
    assert float(value) == pytest.approx(3 * ((0.125 + 0.5) / 2 + 0.02) / 2)  # mean over tokens, then over rows
    (gradient,) = torch.autograd.grad(value, new)
    wanted = 3 * torch.tensor([[0.5 / 4, -1.0 / 4, 0.0], [0.2 / 2, 0.0, 0.0]], dtype=torch.float64)
    assert torch.allclose(gradient, wanted)


def test_tokens_are_aggregated_as_the_objective_does() -> None:
    value = loss(DAPO(distill_coef=1.0), NEW, teacher_logprobs=TEACHER)
    assert float(value) == pytest.approx((0.125 + 0.5 + 0.02) / 3)


def test_distillation_metrics_by_hand() -> None:
    out = GSPO(distill_coef=1.0)(NEW, NEW, NO_REWARD, MASK, teacher_logprobs=TEACHER)
    x = torch.tensor([0.5, -1.0, 0.2], dtype=torch.float64)
    total, count = out.sums["kl_new_teacher"]
    assert (float(total), float(count)) == (pytest.approx(-0.3), 3.0)
    assert float(out.sums["kl_new_teacher_k3"][0]) == pytest.approx(float((torch.exp(-x) - 1 + x).sum()))
    assert float(out.sums["distill_capped"][0]) == 0.0


def test_each_number_is_over_the_tokens_of_responses_and_carries_no_gradient() -> None:
    """Four tokens of six places; on fresh samples the weight of 1 is not above a cap of 1."""
    mask = torch.tensor([[True, True, True], [True, False, False]])
    new = torch.tensor([[-1.0, -2.0, -0.3], [-0.5, 9.0, 9.0]], dtype=torch.float64, requires_grad=True)
    teacher = torch.tensor([[-1.5, -1.0, -0.2], [-0.7, math.nan, 3.0]], dtype=torch.float64)
    kl = torch.tensor([[0.4, 0.2, 0.1], [0.6, 7.0, math.nan]], dtype=torch.float64, requires_grad=True)
    old = new.detach()
    sampled = GSPO(distill_coef=1.0, correction_cap=1.0)(new, old, NO_REWARD, mask, teacher_logprobs=teacher).sums
    exact = GSPO(distill_coef=1.0, distill_exact=True)(new, old, NO_REWARD, mask, teacher_kl=kl).sums
    wanted = {  # of x = 0.5, -1, -0.1, 0.2
        "kl_new_teacher": -0.4,
        "kl_new_teacher_k3": math.exp(-0.5) + math.exp(1.0) + math.exp(0.1) + math.exp(-0.2) - 4 - 0.4,
        "distill_capped": 0.0,
    }
    for name, (total, count) in [*((n, sampled[n]) for n in wanted), ("exact", exact["kl_new_teacher"])]:
        assert (float(total), float(count)) == (pytest.approx(wanted.get(name, 1.3)), 4.0), name
        assert not total.requires_grad
        assert not count.requires_grad


def test_a_token_that_the_teacher_rules_out_counts_as_twenty_nats() -> None:
    new = torch.tensor([[-1.0]], dtype=torch.float64, requires_grad=True)
    mask, teacher = torch.ones(1, 1, dtype=torch.bool), torch.tensor([[-101.0]], dtype=torch.float64)
    out = GSPO(distill_coef=1.0)(new, new.detach(), NO_REWARD[:1], mask, teacher_logprobs=teacher)
    assert float(out.loss) == pytest.approx(20 * (100 - 10))
    (gradient,) = torch.autograd.grad(out.loss, new)
    assert float(gradient) == pytest.approx(20.0)
    assert float(out.sums["kl_new_teacher"][0]) == pytest.approx(100.0)  # measured as it is


OBJECTIVES = [GSPO, GSPOToken, GRPO, DAPO, CISPO, SAPO, LUSPO]


@pytest.mark.parametrize("cls", OBJECTIVES, ids=lambda c: c.__name__)
def test_gradient_is_that_of_finite_differences_beside_any_loss(cls: type[Objective]) -> None:
    """Old and new move together: the importance weight is a constant of the gradient, and stays 1."""
    objective, teacher = cls(distill_coef=0.7, kl_coef=0.1), TEACHER.nan_to_num(0.0, 0.0)
    at = torch.tensor([[-1.0, -2.0, 0.0], [-0.5, 0.0, 0.0]], dtype=torch.float64)

    def term(new: Tensor) -> Tensor:
        return loss(objective, new, ref_logprobs=teacher - 0.3, teacher_logprobs=teacher)

    new = at.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(term(new), new)
    for i, j in MASK.nonzero().tolist():
        nudge = torch.zeros_like(at)
        nudge[i, j] = 1e-6
        slope = float(term(at + nudge) - term(at - nudge)) / 2e-6
        assert float(gradient[i, j]) == pytest.approx(slope, abs=1e-7)


LOGITS = torch.tensor([0.3, -1.2, 0.9, 0.1, -0.4], dtype=torch.float64)
THEIRS = torch.tensor([1.0, 0.2, -0.7, 0.0, 0.5], dtype=torch.float64)


def exact_gradient(logits: Tensor) -> Tensor:
    """Of KL(policy || teacher) with respect to the logits: p_v (log p_v - log q_v - KL)."""
    log_p, log_q = logits.log_softmax(0), THEIRS.log_softmax(0)
    kl = (log_p.exp() * (log_p - log_q)).sum()
    return log_p.exp() * (log_p - log_q - kl)


def expected_gradient(sampler: Tensor, objective: Objective, **more: Any) -> Tensor:
    """Of the loss of one sampled token, averaged over the distribution that it is sampled from."""
    logits = LOGITS.clone().requires_grad_()
    log_p, log_old, log_q = logits.log_softmax(0), sampler.log_softmax(0), THEIRS.log_softmax(0)
    one = torch.ones(len(LOGITS), 1, dtype=torch.bool)
    total = torch.zeros((), dtype=torch.float64)
    for v in range(len(LOGITS)):
        row = one[v : v + 1]
        out = objective(
            log_p[v].reshape(1, 1), log_old[v].reshape(1, 1), NO_REWARD[:1], row,
            teacher_logprobs=log_q[v].reshape(1, 1), **{k: x[v].reshape(1, 1) for k, x in more.items()},
        )  # fmt: skip
        total = total + log_old[v].exp() * out.loss
    (gradient,) = torch.autograd.grad(total, logits)
    return gradient


def test_on_policy_the_expected_gradient_is_that_of_the_kl() -> None:
    assert torch.allclose(expected_gradient(LOGITS, GSPO(distill_coef=1.0)), exact_gradient(LOGITS), atol=1e-12)


def test_k1_as_a_loss_would_have_none() -> None:
    """Why the term is not the estimate itself: kl_estimator k1 against the same distribution goes nowhere."""
    logits = LOGITS.clone().requires_grad_()
    log_p, log_q = logits.log_softmax(0), THEIRS.log_softmax(0)
    (gradient,) = torch.autograd.grad((log_p.detach().exp() * (log_p - log_q)).sum(), logits)
    assert float(gradient.abs().max()) < 1e-12


def test_off_policy_the_importance_weight_makes_it_the_same() -> None:
    old = LOGITS + torch.tensor([0.1, -0.2, 0.15, 0.0, 0.05], dtype=torch.float64)
    found = expected_gradient(old, GSPO(distill_coef=1.0))
    assert torch.allclose(found, exact_gradient(LOGITS), atol=1e-12)
    tight = expected_gradient(old, GSPO(distill_coef=1.0, correction_cap=1.0))  # truncated: biased, and says so
    assert not torch.allclose(tight, exact_gradient(LOGITS), atol=1e-3)


def test_truncated_weights_are_counted() -> None:
    old = NEW - torch.tensor([[1.0, 0.1, 0.0], [0.5, 0.0, 0.0]])
    out = GSPO(distill_coef=1.0)(NEW, old, NO_REWARD, MASK, teacher_logprobs=TEACHER)
    assert tuple(map(float, out.sums["distill_capped"])) == (1.0, 3.0)  # e is above 2
    capped, plain = 2 * 0.125, (math.exp(0.1) * 0.5, math.exp(0.5) * 0.02)
    assert float(out.loss) == pytest.approx(((capped + plain[0]) / 2 + plain[1]) / 2)


def test_samples_of_another_policy_are_corrected_with_the_objective() -> None:
    behaviour = NEW - 0.2
    more = {"behaviour_logprobs": behaviour, "teacher_logprobs": TEACHER}
    plain = loss(GRPO(distill_coef=1.0), NEW, **more)
    corrected = loss(GRPO(distill_coef=1.0, correction="token"), NEW, **more)
    assert float(corrected) == pytest.approx(math.exp(0.2) * float(plain))


def test_the_exact_kl_is_taken_as_it_is() -> None:
    kl = torch.tensor([[0.4, 0.2, math.nan], [0.6, 0.0, 0.0]], dtype=torch.float64, requires_grad=True)
    out = GSPO(distill_coef=2.0, distill_exact=True)(NEW, NEW - 1, NO_REWARD, MASK, teacher_kl=kl)
    assert float(out.loss) == pytest.approx(2 * (0.3 + 0.6) / 2)  # and no weight
    assert float(out.sums["kl_new_teacher"][0]) == pytest.approx(1.2)
    (gradient,) = torch.autograd.grad(out.loss, kl)
    assert torch.allclose(gradient, torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]], dtype=torch.float64))


def test_beside_a_reward_the_terms_add_up() -> None:
    advantages = torch.tensor([1.0, -1.0], dtype=torch.float64)
    old = NEW - 1e-4
    parts = [
        GSPO(distill_coef=c)(NEW, old, a, MASK, teacher_logprobs=TEACHER).loss
        for c, a in ((0.0, advantages), (1.0, NO_REWARD), (1.0, advantages))
    ]
    assert float(parts[2]) == pytest.approx(float(parts[0] + parts[1]))


def test_beside_a_reference_both_terms_are_added() -> None:
    """k1 to the reference is .3 nats at each token, which the first term does not know."""
    reference = NEW - 0.3
    both = GSPO(distill_coef=1.0, kl_coef=2.0, kl_estimator="k1")
    found = loss(both, NEW, ref_logprobs=reference, teacher_logprobs=TEACHER)
    assert float(found) == pytest.approx(((0.125 + 0.5) / 2 + 0.02) / 2 + 2.0 * 0.3)


def test_whole_distributions_are_needed_only_with_a_weight() -> None:
    assert float(loss(GSPO(distill_exact=True), NEW)) == 0.0


@pytest.mark.parametrize(("exact", "argument"), [(False, "teacher_logprobs"), (True, "teacher_kl")])
def test_missing_teacher_argument_is_named(exact: bool, argument: str) -> None:
    with pytest.raises(UserError, match=rf"{argument}: is None, but distill_coef=1.0 needs it"):
        loss(GSPO(distill_coef=1.0, distill_exact=exact), NEW)
