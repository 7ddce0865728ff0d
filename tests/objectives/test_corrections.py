"""Corrections with two bounds and trust region masks, by hand, and what they report."""

from __future__ import annotations

import math

import pytest
import torch

from gspo_lightning.core.errors import UserError
from gspo_lightning.objectives import DAPO, GRPO, GSPO, LUSPO, SAPO, VESPO, GSPOToken, Objective
from tests.objectives.reference_formulas import example, make_batch, run

SHIFT = torch.tensor([[0.1, 0.3, -0.2, 0.0], [-0.4, -0.8, 9.0, 9.0], [2.0, 0.0, 1.0, 9.0]], dtype=torch.float64)
"""log old - log behaviour; 9 is masked. Means: 0.05, -0.6, 1."""
WIDE = {"clip_low": 0.9, "clip_high": 9.0}


def weights_of(objective: Objective) -> tuple[torch.Tensor, dict[str, tuple[float, float]]]:
    """Return each token's gradient over that without a correction, and the sums."""
    new, old, advantages, mask = example()
    _, base = run(type(objective)(**WIDE), new, old, advantages, mask)
    out, grad = run(objective, new, old, advantages, mask, behaviour_logprobs=old - SHIFT)
    return (grad / base)[mask], {name: (float(a), float(b)) for name, (a, b) in out.sums.items()}


def test_two_bounds_by_hand() -> None:
    token = SHIFT[SHIFT < 9].exp()
    low, high = math.exp(-0.5), math.exp(0.5)
    band = {**WIDE, "correction_floor": low, "correction_cap": high}
    cut, _ = weights_of(GRPO(correction="token", **band))
    assert torch.allclose(cut, token.clamp(low, high))
    masked, sums = weights_of(GRPO(correction="token", correction_mode="mask", **band))
    assert torch.allclose(masked, torch.where((token < low) | (token > high), 0.0, token))
    assert sums["correction_masked"] == (3, 9)  # -0.8, 2 and 1
    assert sums["correction_masked_positive"] == (2, 7)  # advantages 1, -2, .5: rows of 4, 2 and 3 tokens
    assert sums["correction_masked_negative"] == (1, 2)
    assert sums["correction_masked_length"] == (5, 2)  # rows of 2 and 3 tokens
    by_row = torch.tensor([0.05] * 4 + [-0.6] * 2 + [1.0] * 3, dtype=torch.float64).exp()
    for cls in (GSPO, GSPOToken, GRPO, LUSPO):
        rows, sums = weights_of(cls(correction="sequence", correction_mode="mask", **band))
        assert torch.allclose(rows, torch.where((by_row < low) | (by_row > high), 0.0, by_row))
        assert sums["correction_masked"] == (5, 9)
        rows, sums = weights_of(cls(correction="sequence", **band))
        assert torch.allclose(rows, by_row.clamp(low, high))
        assert sums["correction_masked"] == (0, 9)
        assert sums["correction_masked_length"] == (0, 0)


def test_the_largest_token_divergence_drops_a_row() -> None:
    """k3 of -0.8 is exp(-0.8) - 1 + 0.8 = 0.2493, that of 2 is 4.389; the mean of row 2 alone would not show it."""
    for cls in (GSPO, GSPOToken, GRPO, LUSPO):
        for delta, kept in ((0.2, (True, False, False)), (0.25, (True, True, False)), (4.4, (True, True, True))):
            rows, sums = weights_of(cls(trm_delta=delta, **WIDE))
            expected = torch.tensor([kept[0]] * 4 + [kept[1]] * 2 + [kept[2]] * 3, dtype=torch.float64)
            assert torch.equal(rows, expected)
            assert sums["trm_dropped_sequences"] == (kept.count(False), 3)
            assert sums["zero_gradient_tokens"][0] == 9 - expected.sum()


def test_a_mask_and_a_weight_go_together() -> None:
    rows, sums = weights_of(GRPO(correction="sequence", trm_delta=0.25, **WIDE))
    by_row = torch.tensor([0.05] * 4 + [-0.6] * 2 + [1.0] * 3, dtype=torch.float64).exp().clamp(max=2.0)
    assert torch.allclose(rows, torch.where(torch.arange(9) < 6, by_row, 0.0))
    assert sums["correction_weight"][0] == pytest.approx(float(by_row.sum()))  # of the samples, before the mask


@pytest.mark.parametrize("cls", [GSPO, GSPOToken, GRPO, DAPO, SAPO, VESPO])
def test_masked_rows_stay_in_the_denominator_and_add_up_over_micro_batches(cls: type[Objective]) -> None:
    new, old, advantages, mask = make_batch(8, [3, 0, 2, 5])
    behaviour = old - torch.linspace(-1.5, 1.5, old.numel(), dtype=old.dtype).view_as(old)
    objective = cls(correction="sequence", correction_floor=0.8, correction_mode="mask", trm_delta=0.6)
    whole, grad = run(objective, new, old, advantages, mask, behaviour_logprobs=behaviour)
    total, parts = objective.count(mask), (slice(0, 1), slice(1, 3), slice(3, 4))
    pieces = [
        run(
            objective, *(x[p] for x in (new, old, advantages, mask)), denominator=total, behaviour_logprobs=behaviour[p]
        )
        for p in parts
    ]
    assert 0 < float(whole.sums["trm_dropped_sequences"][0]) < 3
    assert torch.allclose(grad, torch.cat([g for _, g in pieces]))
    for name, (value, count) in whole.sums.items():
        added = [sum(float(out.sums[name][i]) for out, _ in pieces) for i in (0, 1)]
        assert added == pytest.approx([float(value), float(count)]), name


def test_padding_does_not_reach_a_mask() -> None:
    new, old, advantages, mask = make_batch(3, [3, 2, 1])
    behaviour = torch.where(mask, old - 0.1, torch.nan)
    out, grad = run(GSPO(trm_delta=0.1), new, old, advantages, mask, behaviour_logprobs=behaviour)
    assert out.sums["trm_dropped_sequences"] == (0, 3)
    assert bool(grad.isfinite().all())


@pytest.mark.parametrize(
    ("options", "field"),
    [({"correction_floor": 0.0}, "correction_floor"), ({"correction_floor": 1.1}, "correction_floor"),
     ({"trm_delta": -0.1}, "trm_delta"), ({"trm_delta": math.nan}, "trm_delta")],
)  # fmt: skip
def test_wrong_options_are_named(options: dict[str, float], field: str) -> None:
    with pytest.raises(UserError, match=field):
        GSPO(**options)


def test_a_trust_region_needs_the_samplers_log_probabilities() -> None:
    new, old, advantages, mask = example()
    with pytest.raises(UserError, match="trm_delta"):
        GSPO(trm_delta=0.1)(new, old, advantages, mask)
