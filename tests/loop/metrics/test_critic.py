"""What is measured of a critic, by hand."""

from __future__ import annotations

import pytest
import torch

from gspo_lightning.loop.metrics.critic import measure_critic

CPU = torch.device("cpu")
MASK = torch.tensor([[1, 1, 1, 1, 1], [1, 0, 1, 0, 0]], dtype=torch.bool)


def test_explained_variance_and_biases_by_hand() -> None:
    """Two responses of 5 and 2 tokens: quarters 0 0 1 2 3 and 0 2."""
    returns = torch.tensor([[1.0, 1.0, 1.0, 1.0, 1.0], [0.0, 9.0, 0.0, 9.0, 9.0]])
    values = torch.tensor([[0.5, 0.5, 0.5, 1.0, 1.0], [0.5, 9.0, 0.0, 9.0, 9.0]])
    advantages = torch.tensor([[1.0, 2.0, 3.0, 4.0, 5.0], [6.0, 99.0, 8.0, 99.0, 99.0]])
    found = measure_critic(values, returns, advantages, MASK, CPU)
    differences = torch.tensor([0.5, 0.5, 0.5, 0.0, 0.0, -0.5, 0.0])
    expected = 1 - differences.var(correction=0) / torch.tensor([1.0] * 5 + [0.0] * 2).var(correction=0)
    assert found == {
        "critic/value_mean": pytest.approx(4 / 7),
        "critic/return_mean": pytest.approx(5 / 7),
        "critic/explained_variance": pytest.approx(float(expected)),
        "critic/advantage_bias_by_position/first": pytest.approx(3.0),
        "critic/advantage_bias_by_position/second": pytest.approx(3.0),
        "critic/advantage_bias_by_position/third": pytest.approx(6.0),
        "critic/advantage_bias_by_position/last": pytest.approx(5.0),
    }


def test_a_constant_offset_explains_everything_and_equal_returns_nothing() -> None:
    returns = torch.tensor([[0.0, 1.0, 2.0, 3.0, 4.0], [5.0, 0.0, 6.0, 0.0, 0.0]])
    assert measure_critic(returns + 7, returns, returns, MASK, CPU)["critic/explained_variance"] == pytest.approx(1)
    assert measure_critic(returns * 0, returns, returns, MASK, CPU)["critic/explained_variance"] == pytest.approx(0)
    equal = torch.ones(2, 5) + 0.01 * returns  # a variance of 4e-4
    assert "critic/explained_variance" not in measure_critic(returns, equal, returns, MASK, CPU)
