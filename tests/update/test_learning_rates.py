"""A learning rate that is far too high for a model of its size is said before the first update."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import nn

from gspo_lightning.update.learning_rates import SMALLEST, usual_rate, warn_if_rate_is_high


class Sized(nn.Module):
    """A model of 135M parameters without memory, ``trained`` of which are trained."""

    def __init__(self, trained: int, total: int = 135_000_000) -> None:
        super().__init__()
        self.trained = nn.Parameter(torch.empty(trained, device="meta"))
        self.frozen = nn.Parameter(torch.empty(total - trained, device="meta"), requires_grad=False)


def warned(policy: Sized, lr: float, caplog: pytest.LogCaptureFixture, kind: type = torch.optim.AdamW) -> str:
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        warn_if_rate_is_high(policy, kind([policy.trained], lr=lr))
    return caplog.text


@pytest.mark.parametrize(("trained", "fine", "high"), [(134_000_000, 5e-5, 1e-4), (1_000_000, 5e-4, 1e-3)])
def test_only_a_rate_far_above_the_usual_one(
    trained: int, fine: float, high: float, caplog: pytest.LogCaptureFixture
) -> None:
    policy = Sized(trained)
    assert warned(policy, fine, caplog) == ""
    assert f"model.optimizer.lr is {high:g}" in warned(policy, high, caplog)
    assert warned(policy, high, caplog, torch.optim.SGD) == ""  # whose rate is no step size


def test_tiny_models_have_rates_of_their_own(caplog: pytest.LogCaptureFixture) -> None:
    assert warned(Sized(1_000_000, SMALLEST - 1), 1e-2, caplog) == ""


def test_larger_models_have_smaller_rates_down_to_that_of_papers() -> None:
    sizes = (100_000_000, 500_000_000, 1_500_000_000, 4_000_000_000, 7_000_000_000, 70_000_000_000)
    rates = [usual_rate(size, adapters=False) for size in sizes]
    assert rates == sorted(rates, reverse=True)
    assert rates[-2:] == [1e-6, 1e-6]
