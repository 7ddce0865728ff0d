"""Experts under autocast compute in its dtype, as every other product does."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from gspo_lightning.policy.numerics.autocast_weights import in_compute_dtype
from gspo_lightning.policy.policy import Policy
from tests.support.model_families import build_policy


class Grouped(TorchDispatchMode):
    """Dtypes of the factors of grouped products."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: set[torch.dtype] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "grouped_mm" in str(func):
            self.seen |= {x.dtype for x in args if isinstance(x, Tensor) and x.is_floating_point()}
        return func(*args, **(kwargs or {}))


def gradients(policy: Policy, experts: str) -> tuple[Tensor, Tensor, set[torch.dtype]]:
    """Logits, the gradient of the first layer's experts, and what was multiplied."""
    policy.model.set_experts_implementation(experts)
    policy.model.zero_grad()
    with Grouped() as grouped, torch.autocast("cpu", torch.bfloat16):
        logits = policy.model(torch.arange(3, 19)[None], use_cache=False).logits
        logits.float().log_softmax(-1)[..., 5].sum().backward()
    name, weight = next((n, p) for n, p in policy.model.named_parameters() if "experts" in n)
    assert weight.grad is not None, name
    return logits.detach().float(), weight.grad, grouped.seen


def test_grouped_experts_have_the_logits_and_gradients_of_eager_ones() -> None:
    policy = build_policy("qwen3-moe")
    logits, gradient, seen = gradients(policy, "grouped_mm")
    assert seen == {torch.bfloat16}
    assert gradient.dtype == torch.float32
    plain, expected, none = gradients(policy, "eager")
    assert not none
    assert (logits - plain).norm() < 0.01 * plain.norm()
    assert (gradient - expected).norm() < 0.03 * expected.norm()


def test_without_autocast_and_in_the_copy_of_a_rollout() -> None:
    policy = build_policy("qwen3-moe").eval()
    policy.model.set_experts_implementation("grouped_mm")
    ids = torch.arange(3, 19)[None]
    with Grouped() as grouped, torch.no_grad():
        policy.model(ids, use_cache=False)
    assert grouped.seen == {torch.float32}
    with torch.autocast("cpu", torch.bfloat16), in_compute_dtype(policy) as quick, torch.no_grad():
        experts = [p for n, p in quick.model.named_parameters() if "experts" in n]
        assert {p.dtype for p in experts} == {torch.bfloat16}
        assert torch.equal(quick.model(ids, use_cache=False).logits, policy.model(ids, use_cache=False).logits)
