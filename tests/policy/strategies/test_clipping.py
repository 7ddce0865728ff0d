"""Clipping by a norm that is known already: the bits of PyTorch's own, which reads all gradients again."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gspo_lightning.policy.strategies.sharding import clip_gradients, total_norm


def with_gradients(scale: float) -> list[nn.Parameter]:
    draws = torch.Generator().manual_seed(0)
    made = [nn.Parameter(torch.zeros(shape)) for shape in ((17, 9), (5,), (3, 4, 2))]
    for parameter in (*made[:2],):  # the last one has none
        parameter.grad = scale * torch.randn(parameter.shape, generator=draws)
    return made


@pytest.mark.parametrize("scale", [1e-3, 0.1, 1.0, 37.0, 1e6])
@pytest.mark.parametrize("limit", [0.3, 1.0, 13.0])
def test_bits_are_those_of_pytorch(scale: float, limit: float) -> None:
    ours, theirs = with_gradients(scale), with_gradients(scale)
    gradients = [p.grad for p in ours if p.grad is not None]
    norm = total_norm(gradients, sharded=False, device=torch.device("cpu"))
    clip_gradients(ours, norm, limit)
    assert float(nn.utils.clip_grad_norm_(theirs, limit)) == norm
    for mine, other in zip(ours[:2], theirs[:2], strict=True):
        assert mine.grad is not None
        assert other.grad is not None
        assert torch.equal(mine.grad, other.grad)


def test_elements_are_clipped_without_a_norm() -> None:
    ours, theirs = with_gradients(1.0), with_gradients(1.0)
    clip_gradients(ours, float("nan"), 0.5, "value")
    nn.utils.clip_grad_value_(theirs, 0.5)
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(ours[:2], theirs[:2], strict=True))  # type: ignore[arg-type]
