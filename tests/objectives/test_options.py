"""KL, entropy, off-policy masks and importance weights, which compose with every objective."""

from __future__ import annotations

import math

import pytest
import torch

from gspo_lightning.objectives import DAPO, GRPO, GSPO, LUSPO, VESPO, DrGRPO, GSPOToken
from gspo_lightning.objectives.options import kl_estimate
from tests.objectives.reference_formulas import CASES, NAMES, example, make_batch, run

COMMON = (GSPO, GSPOToken, GRPO, DAPO, LUSPO, VESPO)


def side(seed: int, like: torch.Tensor) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return -torch.rand(like.shape, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("name", NAMES)
def test_options_that_are_off_change_no_bit(name: str) -> None:
    new, old, advantages, mask = make_batch(1, [3, 2, 5])
    plain, grad = run(CASES[name].objective, new, old, advantages, mask)
    extras = {"ref_logprobs": side(1, new), "behaviour_logprobs": side(2, new), "entropy": side(3, new).abs()}
    full, full_grad = run(CASES[name].objective, new, old, advantages, mask, **extras)
    assert torch.equal(plain.loss, full.loss)
    assert torch.equal(grad, full_grad)
    assert {"entropy", "kl_new_ref_k1", "kl_new_ref_k3", "kl_behaviour_old_k1", "kl_behaviour_old_k3"} <= set(full.sums)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
@pytest.mark.parametrize("cls", COMMON)
def test_kl_is_aggregated_like_the_objective(cls: type, estimator: str) -> None:
    new, old, advantages, mask = make_batch(2, [3, 1, 5])
    ref = side(4, new)
    base, base_grad = run(cls(), new, old, advantages, mask)
    out, grad = run(cls(kl_coef=0.3, kl_estimator=estimator), new, old, advantages, mask, ref_logprobs=ref)
    lengths = mask.sum(-1, keepdim=True).double()
    weights = {
        "sequence_mean": 1 / lengths / 3,
        "sequence_sum": torch.full_like(lengths, 1 / 3),
        "token_mean": torch.full_like(lengths, 1 / 9),
    }[cls().aggregation.value]
    x = new - ref
    value = {"k1": x, "k2": x**2 / 2, "k3": torch.exp(-x) - 1 + x}[estimator]
    slope = {"k1": torch.ones_like(x), "k2": x, "k3": 1 - torch.exp(-x)}[estimator]
    assert torch.allclose(out.loss - base.loss, 0.3 * (value * weights * mask).sum(), atol=1e-12)
    assert torch.allclose(grad - base_grad, 0.3 * slope * weights * mask, atol=1e-12)


def test_kl_estimators_by_hand() -> None:
    x = torch.tensor([0.5, -0.5, 0.0], dtype=torch.float64)
    zero = torch.zeros_like(x)
    assert kl_estimate(x, zero, "k1").tolist() == [0.5, -0.5, 0.0]
    assert kl_estimate(x, zero, "k2").tolist() == [0.125, 0.125, 0.0]
    expected = [math.exp(-0.5) - 0.5, math.exp(0.5) - 1.5, 0.0]
    assert kl_estimate(x, zero, "k3").tolist() == pytest.approx(expected, abs=1e-15)
    assert torch.isfinite(kl_estimate(torch.tensor(-200.0), torch.tensor(0.0), "k3"))


@pytest.mark.parametrize("cls", COMMON)
def test_entropy_bonus_is_subtracted_and_has_a_gradient(cls: type) -> None:
    new, old, advantages, mask = make_batch(2, [4, 4])
    entropy = side(5, new).abs().requires_grad_()
    base = cls()(new, old, advantages, mask).loss
    loss = cls(entropy_coef=0.1)(new, old, advantages, mask, entropy=entropy).loss
    scale = 4 if cls is LUSPO else 1
    assert torch.allclose(base - loss, 0.1 * scale * entropy[mask].mean(), atol=1e-12)
    loss.backward()
    assert torch.allclose(entropy.grad, torch.where(mask, -0.1 * scale / 8, 0.0).double(), atol=1e-12)


@pytest.mark.parametrize("per_token", [False, True])
def test_off_policy_sequence_mask_drops_far_rows_with_negative_advantage(per_token: bool) -> None:
    old = torch.zeros(4, 2, dtype=torch.float64) - 1
    new = old - torch.tensor([[0.3], [0.3], [0.1], [-0.3]])
    mask = torch.ones(4, 2, dtype=torch.bool)
    advantages = torch.tensor([-1.0, 1.0, -1.0, -1.0]).double()
    advantages = advantages.unsqueeze(-1).repeat(1, 2) if per_token else advantages
    objectives = (GSPOToken, GRPO) if per_token else (GSPO, GSPOToken, GRPO, LUSPO, VESPO)
    for cls in objectives:
        wide = {} if cls is VESPO else {"clip_low": 0.9, "clip_high": 9.0}
        base, base_grad = run(cls(**wide), new, old, advantages, mask)
        out, grad = run(cls(**wide, opsm_delta=0.2), new, old, advantages, mask)
        assert grad[0].abs().sum() == 0
        assert torch.equal(grad[1:], base_grad[1:])  # the denominator stays
        assert out.sums["opsm_dropped_sequences"][0] == 1
        assert out.sums["opsm_dropped_sequences"][1] == 4
        assert out.sums["zero_gradient_tokens"][0] == base.sums["zero_gradient_tokens"][0] + 2
        assert not out.clipped.any()


def test_correction_weights_by_hand() -> None:
    new, old, advantages, mask = example()
    shift = torch.tensor([[0.1, 0.3, -0.2, 0.0], [-0.4, -0.2, 9.0, 9.0], [2.0, 0.0, 1.0, 9.0]], dtype=torch.float64)
    behaviour = old - shift  # log old - log behaviour = shift
    _, base = run(GRPO(0.9, 9.0), new, old, advantages, mask)

    def ratio(**kwargs: object) -> torch.Tensor:
        objective = GRPO(0.9, 9.0, **kwargs)
        out, grad = run(objective, new, old, advantages, mask, behaviour_logprobs=behaviour)
        weight = (grad / base)[mask]
        if kwargs["correction"] == "token":
            assert out.sums["correction_weight"][0].item() == pytest.approx(weight.sum().item())
            assert out.sums["correction_weight"][1] == 9
        return weight

    token = shift[mask].exp()
    assert torch.allclose(ratio(correction="token", correction_cap=100.0), token)
    assert torch.allclose(ratio(correction="token"), token.clamp(max=2.0))
    masked = ratio(correction="token", correction_mode="mask")
    assert torch.allclose(masked, torch.where(token > 2.0, 0.0, token))
    means = torch.tensor([0.05] * 4 + [-0.3] * 2 + [1.0] * 3, dtype=torch.float64).exp()
    assert torch.allclose(ratio(correction="sequence"), means.clamp(max=2.0))
    assert torch.allclose(ratio(correction="sequence", correction_mode="mask"), torch.where(means > 2, 0.0, means))


def test_sequence_correction_of_a_sequence_loss() -> None:
    new, old, advantages, mask = make_batch(3, [3, 2, 1])
    behaviour = old - 0.5
    for cls in (GSPO, LUSPO):
        wide = {"clip_low": 0.9, "clip_high": 9.0}
        _, base = run(cls(**wide), new, old, advantages, mask)
        out, grad = run(cls(**wide, correction="sequence"), new, old, advantages, mask, behaviour_logprobs=behaviour)
        assert torch.allclose(grad, base * math.exp(0.5))
        assert out.sums["correction_weight"][1] == 3


def test_a_weight_exactly_at_the_cap_is_kept() -> None:
    new, _, advantages, mask = make_batch(3, [3, 2, 1])
    old = torch.zeros_like(new)
    behaviour = old - math.log(2.0)  # exp(log 2) is exactly 2
    for mode in ("truncate", "mask"):
        objective = DAPO(correction="token", correction_mode=mode)
        out = objective(new, old, advantages, mask, behaviour_logprobs=behaviour)
        assert out.sums["correction_weight"] == (12, 6)
        assert out.sums["correction_weight_squared"] == (24, 6)


def test_masked_weights_count_as_zero_gradient() -> None:
    new, old, advantages, mask = make_batch(3, [3, 2, 1])
    behaviour = old - 5.0
    objective = GRPO(0.9, 9.0, correction="token", correction_mode="mask")
    out, grad = run(objective, new, old, advantages, mask, behaviour_logprobs=behaviour)
    assert grad.abs().sum() == 0
    assert out.sums["zero_gradient_tokens"][0] == 6


def test_all_options_together_still_add_up_over_micro_batches() -> None:
    new, old, advantages, mask = make_batch(8, [3, 0, 2, 5])
    extras = {"ref_logprobs": side(1, new), "behaviour_logprobs": side(2, new), "entropy": side(3, new).abs()}
    for cls in (GSPOToken, GRPO, DAPO):
        objective = cls(kl_coef=0.1, entropy_coef=0.1, opsm_delta=0.01, correction="token", dual_clip=1.5)
        whole, whole_grad = run(objective, new, old, advantages, mask, **extras)
        total = objective.count(mask)
        parts = [
            run(
                objective,
                *(x[p] for x in (new, old, advantages, mask)),
                denominator=total,
                **{k: v[p] for k, v in extras.items()},
            )
            for p in (slice(0, 1), slice(1, 2), slice(2, 4))
        ]
        assert torch.allclose(sum(o.loss for o, _ in parts), whole.loss, atol=1e-14)
        assert torch.allclose(torch.cat([g for _, g in parts]), whole_grad, atol=0, rtol=1e-13)
        for key, (value, count) in whole.sums.items():
            assert torch.allclose(sum(o.sums[key][0] for o, _ in parts), value, atol=1e-12), key
            assert sum(o.sums[key][1] for o, _ in parts) == count, key


def test_garbage_in_optional_inputs_changes_no_bit() -> None:
    new, old, advantages, mask = make_batch(8, [3, 0, 2, 5])
    extras = {"ref_logprobs": side(1, new), "behaviour_logprobs": side(2, new), "entropy": side(3, new).abs()}
    dirty = {k: torch.where(mask, v, float("nan")) for k, v in extras.items()}
    objective = DrGRPO(8, kl_coef=0.1, entropy_coef=0.1, opsm_delta=0.01, correction="token")
    a, a_grad = run(objective, new, old, advantages, mask, **extras)
    b, b_grad = run(objective, new, old, advantages, mask, **dirty)
    assert torch.equal(a.loss, b.loss)
    assert torch.equal(a_grad, b_grad)
    assert all(torch.equal(a.sums[k][0], b.sums[k][0]) for k in a.sums)
