"""The fused kernel is taken where nothing else was chosen, and steps as the plain one does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gspo_lightning.core.errors import UserError
from gspo_lightning.loop.update.optimizers import fuse, settings_of_optimizer, try_optimizer


def stepped(kind: type[torch.optim.Optimizer], fused: bool, **options: Any) -> Tensor:
    weight = torch.linspace(-1, 1, 37, dtype=torch.float64).requires_grad_()
    optimizer = kind([weight], lr=0.1, **options)  # type: ignore[call-arg]
    if fused:
        fuse(optimizer)
        assert optimizer.param_groups[0]["fused"] is True
    for power in (1, 2, 3):
        weight.grad = weight.detach() ** power
        optimizer.step()
    return weight.detach()


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
def test_the_same_steps(kind: type[torch.optim.Optimizer]) -> None:
    torch.testing.assert_close(stepped(kind, True), stepped(kind, False), rtol=0, atol=1e-12)


class Own(torch.optim.AdamW):
    """Somebody's own."""


@pytest.mark.parametrize(
    ("kind", "options"),
    [(torch.optim.AdamW, {"foreach": True}), (torch.optim.AdamW, {"fused": False}), (Own, {}), (torch.optim.SGD, {})],
)
def test_fuse_leaves_chosen_kernels_and_other_optimizers_alone(
    kind: type[torch.optim.Optimizer], options: dict[str, Any]
) -> None:
    optimizer = kind([torch.zeros(3, requires_grad=True)], lr=0.1, **options)  # type: ignore[call-arg]
    before = optimizer.param_groups[0]["fused"]
    fuse(optimizer)
    assert optimizer.param_groups[0]["fused"] == before


def test_a_plugins_own_error_stays_as_it_is() -> None:
    class Mine(torch.optim.SGD):
        def __init__(self, params: list[nn.Parameter], lr: float) -> None:
            if lr < 1:
                raise ValueError("too slow for me")
            super().__init__(params, lr)

    try_optimizer(lambda weights: Mine(weights, 0.5))  # built later, with the real weights
    with pytest.raises(ValueError, match="too slow for me") as raised, settings_of_optimizer():
        Mine([nn.Parameter(torch.zeros(1))], 0.5)
    assert not isinstance(raised.value, UserError)
