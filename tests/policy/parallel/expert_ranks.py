"""Ranks of ``test_expert_parallel``: what they compute and send."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from gspo_lightning.policy.parallel.expert_parallel import expert_modules, keep_experts
from gspo_lightning.policy.tiny import build_tiny_model

LENGTHS = (19, 8)
"""Tokens of each rank."""


def model_and_tokens() -> tuple[Any, list[Tensor]]:
    model = build_tiny_model("tiny-qwen3-moe", 1, torch.float32, {})
    generator = torch.Generator().manual_seed(1)
    return model, [torch.randint(1, 30, (1, length), generator=generator) for length in LENGTHS]


def loss_of(model: Any, ids: Tensor) -> Tensor:
    logits: Tensor = model(input_ids=ids, use_cache=False).logits
    return (logits * torch.linspace(-1, 1, logits.numel()).view(logits.shape)).sum() / 100


def differences(rank: int) -> dict[str, float]:
    """To one process that has all experts: of this rank's logits, and of the gradient of its own experts."""
    model, tokens = model_and_tokens()
    torch.stack([loss_of(model, ids) for ids in tokens]).sum().backward()
    expected = [p.grad.chunk(2)[rank] / 2 for m in expert_modules(model).values() for p in m.parameters()]
    with torch.no_grad():
        alone = model(input_ids=tokens[rank], use_cache=False).logits
    mesh, kept = init_device_mesh("cpu", (2,)), set[torch.nn.Parameter]()
    for experts in expert_modules(model).values():
        kept |= keep_experts(experts, mesh)
    model.zero_grad()
    with torch.no_grad():
        together = model(input_ids=tokens[rank], use_cache=False).logits
    loss_of(model, tokens[rank]).backward()
    found = {"logits": float((alone - together).abs().max()), "weights": float(len(kept))}
    gradients = [p.grad for m in expert_modules(model).values() for p in m.parameters()]
    for gradient, whole in zip(gradients, expected, strict=True):
        assert isinstance(gradient, DTensor)
        largest = float((gradient.to_local() - whole).abs().max() / whole.abs().max())
        found["gradients"] = max(found.get("gradients", 0.0), largest)
    return found


def bytes_sent(rank: int) -> tuple[int, int]:
    """Of hidden states by this rank in a forward and a backward pass, and of the experts that FSDP2 would gather."""
    model, tokens = model_and_tokens()
    mesh, sent = init_device_mesh("cpu", (2,)), []
    weights = sum(p.numel() * 4 for m in expert_modules(model).values() for p in m.parameters())
    for experts in expert_modules(model).values():
        keep_experts(experts, mesh)
    original = dist.all_to_all_single

    def counted(out: Tensor, values: Tensor, *sizes: Any, **options: Any) -> Any:
        sent.append(values.numel() * 4 if values.is_floating_point() else 0)
        return original(out, values, *sizes, **options)

    with patch.object(dist, "all_to_all_single", counted):
        loss_of(model, tokens[rank]).backward()
    return sum(sent), weights
