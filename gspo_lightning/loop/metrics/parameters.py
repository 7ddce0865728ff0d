"""Weight metrics: how many weights an update changes, by how much, and how large the weights are, part by part.

Everything is a sum over the weights that this rank holds, reduced once: the same code serves replicated weights (DDP)
and sharded ones (FSDP), and no weight is ever gathered.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from gspo_lightning.core.distributed import all_sum, local

PARTS = ("embedding", "head", "norms", "router", "experts", "attention", "mlp", "other")
"""Parts of a model, distinguished by the names that transformers gives its modules."""
_WORDS = (
    ("embedding", ("embed", "wte", "wpe")),
    ("head", ("lm_head", "embed_out", "score")),
    ("norms", ("norm", "ln_")),
    ("router", ("router", ".gate.")),
    ("experts", ("expert",)),
    ("attention", ("attn", "attention")),
    ("mlp", ("mlp", "ffn", "feed_forward")),
)
SAMPLE = 1 << 20
"""Approximate limit of weights that are compared before and after an update; of larger models, every k-th."""


def part_of(name: str) -> str:
    """Return the part of the model that a parameter belongs to, one of :data:`PARTS`.

    >>> part_of("model.layers.0.self_attn.q_norm.weight"), part_of("model.layers.0.mlp.gate.weight")
    ('norms', 'router')
    """
    for part, words in _WORDS:
        if any(word in name for word in words):
            return part
    return "other"


class ParameterMetrics:
    """Comparison of trainable weights before and after an optimizer step.

    Args:
        module: the whole model, before a strategy shards it: its size later distinguishes replicas from shards.
    """

    def __init__(self, module: nn.Module) -> None:
        self._total = sum(p.numel() for p in module.parameters())
        self._before: Tensor | None = None

    def before_step(self, module: nn.Module) -> None:
        """Remember about :data:`SAMPLE` of this rank's weights."""
        self._before = self._sample(module)

    def after_step(self, module: nn.Module) -> dict[str, float]:
        """Return scalars under their tags; the same on every rank."""
        assert self._before is not None, "before_step comes first"
        before = self._before
        after = self._sample(module)
        self._before = None
        held = sum(local(p).numel() for p in module.parameters())
        counts = torch.tensor([after.numel(), held], dtype=torch.float64, device=after.device)
        changes = [
            (after != before).sum().double(),
            (after - before).square().sum(dtype=torch.float64),
            before.square().sum(dtype=torch.float64),
        ]
        part_squares = self._squares(module)
        packed = torch.stack([*changes, *counts, *part_squares.values()])
        changed, moved, size, sampled, all_held, *reduced_squares = all_sum(packed).tolist()

        scalars = {
            "update/changed": changed / max(sampled, 1),
            "update/relative_norm": (moved / size) ** 0.5 if size else 0.0,
        }
        copies = max(all_held / self._total, 1e-9)  # of each weight over all ranks: 1 if sharded
        for part, square in zip(part_squares, reduced_squares, strict=True):
            scalars[f"weights/{part}"] = (square / copies) ** 0.5
        return scalars

    def _sample(self, module: nn.Module) -> Tensor:
        """Sample every k-th of this rank's trainable weights, in the order of the module: [about SAMPLE] float32."""
        weights = [local(p.detach()).reshape(-1) for p in _trainable(module)]
        size = sum(weight.numel() for weight in weights)
        step = max(1, math.ceil(size / SAMPLE))
        samples = []
        offset = 0  # of the first sampled weight in the next tensor: the stride runs on across tensors
        for weight in weights:
            samples.append(weight[offset::step])
            offset = (offset - weight.numel()) % step
        if step == 1 and len(samples) == 1:
            return samples[0].float().clone()  # else a view of the weights, which the step changes
        return torch.cat(samples).float()

    def _squares(self, module: nn.Module) -> dict[str, Tensor]:
        """Sum the squares of this rank's trainable weights by part; parts that the model lacks are left out."""
        named = [(name, local(p.detach())) for name, p in module.named_parameters() if p.requires_grad]
        norms = torch._foreach_norm([weight for _, weight in named])  # few kernels instead of one a tensor
        by_part: dict[str, list[Tensor]] = {}
        for (name, _), norm in zip(named, norms, strict=True):
            by_part.setdefault(part_of(name), []).append(norm.double().square())
        return {part: torch.stack(by_part[part]).sum() for part in PARTS if part in by_part}


def _trainable(module: nn.Module) -> Iterator[Tensor]:
    return (p for p in module.parameters() if p.requires_grad)
