"""What a precision can bear, with values computed by hand."""

from __future__ import annotations

import contextlib
import logging

import pytest
import torch
from torch import nn

from gspo_lightning.commands.doctor.precision import findings
from gspo_lightning.errors import UserError
from gspo_lightning.objectives import CISPO, GSPO
from gspo_lightning.old_policy.noise import band, check_ratio_noise, ratio_noise
from gspo_lightning.policy.checks import probe
from gspo_lightning.policy.loading import load_policy
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.settings import ModelSettings
from gspo_lightning.update.optimizers import still_share, warn_if_weights_stand_still


@pytest.fixture(scope="module")
def policy() -> Policy:
    return load_policy(ModelSettings())


@pytest.mark.parametrize("lr", [1e-5, 1e-3, 3e-3, 1e-2])
def test_share_of_weights_that_stand_still_is_what_rounding_does(lr: float) -> None:
    weights = torch.randn(4096, generator=torch.Generator().manual_seed(0)).bfloat16()
    moved = (weights.float() + lr).bfloat16()
    back = (weights.float() - lr).bfloat16()
    still = ((moved == weights) & (back == weights)).float().mean()
    assert still_share([weights], lr) == pytest.approx(float(still), abs=0.02)  # spacings differ at powers of two


def test_float32_weights_always_move() -> None:
    assert still_share([torch.ones(4)], 1e-9) == 0.0


def test_warning_only_where_steps_are_rounded_away(caplog: pytest.LogCaptureFixture) -> None:
    layer = nn.Linear(8, 8).bfloat16()
    with caplog.at_level(logging.WARNING):
        warn_if_weights_stand_still(layer, torch.optim.AdamW(layer.parameters(), lr=1e-1))
        warn_if_weights_stand_still(layer, torch.optim.SGD(layer.parameters(), lr=1e-6))
        assert not caplog.records
        warn_if_weights_stand_still(layer, torch.optim.AdamW(layer.parameters(), lr=1e-6))
    assert "rounded away in 100% of the weights" in caplog.text


def test_band_is_the_smaller_side() -> None:
    assert band(GSPO(clip_low=3e-4, clip_high=4e-4)) == 3e-4
    assert band(CISPO(clip_low=1.0, clip_high=0.2)) == 0.2


def test_noise_of_equal_evaluations_is_zero_and_of_others_is_measured(policy: Policy) -> None:
    batch = probe(policy)
    assert ratio_noise(policy, batch) == 0.0
    shifted = policy(batch)[0].detach() + 2e-3
    assert ratio_noise(policy, batch, lambda: shifted) == pytest.approx(2e-3, rel=1e-3)


def test_a_policy_that_is_not_repeatable_is_refused(policy: Policy) -> None:
    noise = iter([0.0, 1e-3])
    handle = policy.register_forward_hook(lambda *a: (a[2][0] + next(noise), a[2][1]))
    try:
        with pytest.raises(UserError, match="it would clip noise"):
            check_ratio_noise(policy, probe(policy), GSPO(), contextlib.nullcontext)
    finally:
        handle.remove()
    check_ratio_noise(policy, probe(policy), GSPO(), contextlib.nullcontext)


def test_doctor_finds_every_precision_repeatable_and_bfloat16_apart_from_float32() -> None:
    found = {}
    name = ""
    for finding in findings():
        name = finding.what if not finding.what.startswith(" ") else name
        found[name, finding.what.strip()] = finding.state
    assert all(found[name, name] == "ok" for name, _ in found)
    assert found["32-true", "the other layout (padded)"] == "ok"
    assert found["bf16-mixed", "in float32"] == found["model.dtype: bfloat16", "in float32"] == "note"
