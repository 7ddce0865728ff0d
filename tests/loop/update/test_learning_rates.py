"""A learning rate that is far too high for a model of its size is said before the first update."""

from __future__ import annotations

import logging
import re

import pytest
import torch
import yaml
from torch import nn

from gspo_lightning.loop.update.learning_rates import FAR, SMALLEST, usual_rate, warn_if_rate_is_high
from tests import ROOT


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


def test_the_guide_and_the_configs_have_the_rates_of_the_warning() -> None:
    page = (ROOT / "docs" / "first_real_run.md").read_text()
    rows = re.findall(r"^\| ([\d.]+)B \| (\S+) \| (\S+) \|$", page, flags=re.MULTILINE)
    assert [float(size) for size, _, _ in rows] == [0.135, 0.5, 1.5, 3, 7, 30]
    table = {float(size): (float(full), float(adapters)) for size, full, adapters in rows}
    for size, rates in table.items():
        assert rates == tuple(float(f"{usual_rate(int(size * 1e9), adapters=how):.0e}") for how in (False, True))
    assert lr_of("smollm2_lora.yaml") == table[0.135][1]
    assert lr_of("lora.yaml") == table[3.0][1]
    for name, size in {"math": 1.7, "smollm2": 0.135, "models/qwen3_4b": 4, "models/qwen3_8b": 8}.items():
        assert lr_of(f"{name}.yaml") < FAR * usual_rate(int(size * 1e9), adapters=False)


def lr_of(config: str) -> float:
    found = yaml.safe_load((ROOT / "configs" / config).read_text())["model"]["optimizer"]["init_args"]["lr"]
    assert isinstance(found, float)
    return found


def test_tiny_models_have_rates_of_their_own(caplog: pytest.LogCaptureFixture) -> None:
    assert warned(Sized(1_000_000, SMALLEST - 1), 1e-2, caplog) == ""


def test_larger_models_have_smaller_rates_down_to_that_of_papers() -> None:
    sizes = (100_000_000, 500_000_000, 1_500_000_000, 4_000_000_000, 7_000_000_000, 70_000_000_000)
    rates = [usual_rate(size, adapters=False) for size in sizes]
    assert rates == sorted(rates, reverse=True)
    assert rates[-2:] == [1e-6, 1e-6]
