"""The measurements, by hand."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from gspo_lightning.objectives import (
    CISPO,
    DAPO,
    DPPOTV,
    GMPO,
    GRPO,
    GSPO,
    PPO,
    REINFORCE,
    SAPO,
    VESPO,
    GSPOToken,
    Objective,
    Segment,
)
from tests.objectives.reference_formulas import example, run

RATIOS = [[0.1, -0.1, 0.2, 0.0], [-0.2, -0.2], [0.0, 0.3, 0.0]]
TOKENS = [math.exp(x) for row in RATIOS for x in row]
SEQUENCES = [math.exp(x) for x in (0.05, -0.2, 0.1)]


def sums(objective: Objective) -> dict[str, tuple[float, float]]:
    return {k: (float(a), float(b)) for k, (a, b) in objective(*example()).sums.items()}


def approx(*pair: float):  # noqa: ANN201
    return pytest.approx(pair, abs=1e-12)


def test_gspo_measures_sequences_and_tokens() -> None:
    found = sums(GSPO(0.15, 0.08))  # ratios 1.051 (A 1), 0.819 (A -2: clipped), 1.105 (A 0.5: clipped)
    assert found == {
        "clip_fraction_sequences": approx(2, 3),
        "clip_fraction_tokens": approx(5, 9),
        "clip_fraction_low": approx(2, 9),
        "clip_fraction_high": approx(3, 9),
        "clip_fraction_tokens_positive": approx(3, 7),
        "clip_fraction_tokens_negative": approx(2, 2),
        "outside_band": approx(2, 3),
        "zero_gradient_tokens": approx(5, 9),
        "ratio": approx(sum(SEQUENCES), 3),
        "ratio_squared": approx(sum(s * s for s in SEQUENCES), 3),
        "log_ratio_sequence": approx(0.05 - 0.2 + 0.1, 3),
        "log_ratio_sequence_squared": approx(0.05**2 + 0.2**2 + 0.1**2, 3),
        "kl_old_new_k1": approx(-0.1, 9),
        "kl_old_new_k3": approx(sum(math.exp(x) - 1 - x for row in RATIOS for x in row), 9),
        "clamped_ratios": approx(0, 3),
    }


def test_grpo_measures_tokens() -> None:
    found = sums(GRPO(0.15, 0.08))
    # clipped: .1 and .2 in row 0 (A 1), both of row 1 (A -2), .3 in row 2; outside besides: none with the other sign
    assert found["clip_fraction_tokens"] == approx(5, 9)
    assert found["clip_fraction_high"] == approx(3, 9)
    assert found["clip_fraction_low"] == approx(2, 9)
    assert found["outside_band"] == approx(5, 9)
    assert found["ratio"] == approx(sum(TOKENS), 9)
    assert found["ratio_squared"] == approx(sum(r * r for r in TOKENS), 9)
    assert found["clamped_ratios"] == approx(0, 9)
    assert "clip_fraction_sequences" not in found
    assert "clip_fraction_dual" not in found
    assert found["log_ratio_sequence"] == approx(-0.05, 3)


def test_outside_the_band_is_not_clipped() -> None:
    """The same ratios with the opposite advantages: outside as before, but nothing is clipped."""
    new, old, advantages, mask = example()
    out = GRPO(0.15, 0.08)(new, old, -advantages, mask)
    assert out.sums["outside_band"][0] == 5
    assert out.sums["clip_fraction_tokens"][0] == 0
    assert out.sums["zero_gradient_tokens"][0] == 0


@dataclass(repr=False)
class BothSides(PPO):
    """Loses the gradient outside of the band, whatever the advantage."""

    def sides(self, below: Tensor, above: Tensor, advantages: Tensor) -> tuple[Tensor, Tensor]:
        return below, above


@pytest.mark.parametrize(
    ("objective", "low", "high", "dual"),
    [
        (PPO(0.2, 0.2), [3], [0], None),
        (GSPO(0.2, 0.2), [3], [0], None),
        (GMPO(0.2, 0.2), [3], [0], None),
        (DPPOTV(0.1, 0.1), [3], [0], None),
        (PPO(0.2, 0.2, dual_clip=1.4), [3], [0], [1]),
        (CISPO(0.2, 0.2), None, None, None),
        (BothSides(0.2, 0.2), [2, 3], [0, 1], None),
    ],
    ids=repr,
)
def test_an_objective_says_which_sides_it_clips(
    objective: Objective, low: list[int] | None, high: list[int] | None, dual: list[int] | None
) -> None:
    """Ratios 1.5, 1.5, 0.5, 0.5 of responses of one token with advantages 1, -1, 1, -1."""
    new = torch.tensor([[0.75], [0.75], [0.25], [0.25]], dtype=torch.float64).log()
    old = torch.full((4, 1), 0.5, dtype=torch.float64).log()
    advantages, mask = torch.tensor([1.0, -1.0, 1.0, -1.0]).double(), torch.ones(4, 1, dtype=torch.bool)
    out, grad = run(objective, new, old, advantages, mask)
    gone = sorted([*(low or []), *(high or []), *(dual or [])])
    assert (grad.flatten() == 0).nonzero().flatten().tolist() == gone
    assert out.clipped.flatten().nonzero().flatten().tolist() == gone
    for name, rows in (("low", low), ("high", high), ("dual", dual)):
        assert out.sums.get(f"clip_fraction_{name}") == (None if rows is None else (len(rows), 4))
    assert out.sums["clip_fraction_tokens"] == (len(gone), 4)
    assert out.sums["outside_band"] == (4, 4)


def test_zero_advantages_have_no_gradient_but_are_not_clipped() -> None:
    new, old, _, mask = example()
    out = GSPO()(new, old, torch.tensor([0.0, 0.0, 1.0]).double(), mask)
    assert out.sums["zero_gradient_tokens"][0] == 9
    assert out.sums["clip_fraction_tokens"][0] == 3
    assert out.sums["clip_fraction_tokens_positive"] == (3, 3)
    assert out.sums["clip_fraction_tokens_negative"] == (0, 0)


def test_gspo_token_counts_part_of_a_sequence_as_clipped() -> None:
    new, old, _, mask = example()
    per_token = torch.ones(3, 4, dtype=torch.float64)
    per_token[0, 0] = -1.0
    out = GSPOToken()(new, old, per_token, mask)
    # ratios 1.05, .82, 1.1 with A = 1 but for one token: row 0 three of four, row 1 none, row 2 all
    assert out.clipped.sum(-1).tolist() == [3, 0, 3]
    assert out.sums["clip_fraction_sequences"] == (1.75, 3)
    assert out.sums["outside_band"] == (3, 3)
    assert out.sums["ratio"][1] == 3


def test_a_mean_and_an_effective_sample_size_follow_from_the_sums() -> None:
    found = sums(GSPO())
    ess = found["ratio"][0] ** 2 / found["ratio_squared"][0]
    assert ess == pytest.approx(sum(SEQUENCES) ** 2 / sum(s * s for s in SEQUENCES))


@pytest.mark.parametrize("objective", [SAPO(), VESPO(), REINFORCE()], ids=repr)
def test_without_a_clip_nothing_is_clipped_and_there_is_no_band(objective: Objective) -> None:
    found = sums(objective)
    assert found["clip_fraction_tokens"] == (0, 9)
    assert found["zero_gradient_tokens"] == (0, 9)
    assert not {"outside_band", "clip_fraction_low", "clip_fraction_high"} & set(found)


def test_vespo_reports_the_plain_likelihood_ratio() -> None:
    out = VESPO()(*example())
    assert out.ratio.tolist() == pytest.approx([math.exp(x) for x in (0.2, -0.4, 0.3)], abs=1e-12)


def test_cispo_caps_weights_without_clipping() -> None:
    found = sums(CISPO(0.15, 0.15))
    # .2 and .3 above, both of row 1 below
    assert found["outside_band"] == approx(4, 9)
    assert found["clip_fraction_tokens"] == (0, 9)


def test_gmpo_measures_in_log_space() -> None:
    out = GMPO(0.15, 0.15)(*example())
    assert out.clipped.nonzero().tolist() == [[0, 2], [1, 0], [1, 1], [2, 1]]
    assert out.sums["outside_band"][0] == 4
    assert out.ratio[out.ratio != 1].tolist() == pytest.approx([r for r in TOKENS if r != 1], abs=1e-12)


def test_dppo_drops_by_probability() -> None:
    new = torch.tensor([[0.9, 0.02, 0.5]], dtype=torch.float64).log()
    old = torch.tensor([[0.6, 0.001, 0.9]], dtype=torch.float64).log()
    mask = torch.ones(1, 3, dtype=torch.bool)
    up = DPPOTV()(new, old, torch.tensor([1.0]).double(), mask)
    assert up.clipped.tolist() == [[True, False, False]]  # a ratio of 20 stays, a rise of 0.3 does not
    down = DPPOTV()(new, old, torch.tensor([-1.0]).double(), mask)
    assert down.clipped.tolist() == [[False, False, True]]
    assert up.sums["outside_band"] == (2, 3)


def test_segment_reports_at_its_own_level() -> None:
    assert Segment(by="turn").level == "sequence"
    assert "clip_fraction_sequences" in sums(Segment(by="turn"))
    assert Segment(segment_length=1).level == "token"
    assert "clip_fraction_sequences" not in sums(Segment(segment_length=1))


def test_divergences_of_other_policies_by_hand() -> None:
    new, old, advantages, mask = example()
    entropy = torch.full_like(old, 0.25)
    # the behaviour policy drew the samples: x = log behaviour - log old = 0.5; the policy for the reference: x = -0.25
    out = GSPO()(
        new, old, advantages, mask, behaviour_logprobs=old + 0.5, ref_logprobs=new.detach() + 0.25, entropy=entropy
    )
    found = {k: (float(a), float(b)) for k, (a, b) in out.sums.items()}
    assert found["kl_behaviour_old_k1"] == approx(9 * 0.5, 9)
    assert found["kl_behaviour_old_k3"] == approx(9 * (math.exp(-0.5) - 1 + 0.5), 9)
    assert found["kl_new_ref_k1"] == approx(9 * -0.25, 9)
    assert found["kl_new_ref_k3"] == approx(9 * (math.exp(0.25) - 1 - 0.25), 9)
    assert found["entropy"] == approx(9 * 0.25, 9)


def test_far_ratios_are_limited_and_counted() -> None:
    new, old, advantages, mask = example()
    far = new.detach().clone()
    far[2, 0] = 30.0
    for objective, count in ((GRPO(), (1, 9)), (DAPO(), (1, 9)), (SAPO(), (1, 9)), (GSPO(), (0, 3)), (VESPO(), (1, 3))):
        out = objective(far, old, advantages, mask)
        assert out.sums["clamped_ratios"] == count
        assert out.ratio.max() <= math.exp(20) * (1 + 1e-12)


def test_ratio_is_one_at_masked_positions() -> None:
    out = GSPOToken()(*example())
    mask = example()[3]
    assert (out.ratio[~mask] == 1).all()
    assert not out.ratio.requires_grad
