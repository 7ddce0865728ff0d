"""Weight metrics: how many weights an update changes, by how much, and how large the weights are, part by part.

Everything is a sum over the weights that this rank holds, reduced once: the same code serves replicated weights (DDP)
and sharded ones (FSDP), and no weight is ever gathered.
"""

from __future__ import annotations

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
    return next((part for part, words in _WORDS if any(word in name for word in words)), "other")


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
        before, after = self._before, self._sample(module)
        self._before = None
        sums = [
            (after != before).sum().double(),
            (after - before).square().sum(dtype=torch.float64),
            before.square().sum(dtype=torch.float64),
            torch.tensor(float(after.numel()), dtype=torch.float64, device=after.device),
        ]
        held = sum(local(p).numel() for p in module.parameters())
        sums.append(torch.tensor(float(held), dtype=torch.float64, device=after.device))
        squares = self._squares(module)
        reduced = all_sum(torch.stack([*sums, *squares.values()])).tolist()
        changed, moved, size, count, all_held = reduced[: len(sums)]
        copies = max(all_held / self._total, 1e-9)  # of each weight over all ranks: 1 if sharded
        scalars = {
            "update/changed": changed / max(count, 1),
            "update/relative_norm": (moved / size) ** 0.5 if size else 0.0,
        }
        for part, square in zip(squares, reduced[len(sums) :], strict=True):
            scalars[f"weights/{part}"] = (square / copies) ** 0.5
        return scalars

    def _sample(self, module: nn.Module) -> Tensor:
        """Sample every k-th of this rank's trainable weights, in the order of the module: [about SAMPLE] float32."""
        tensors = [local(p.detach()).reshape(-1) for p in _trainable(module)]
        step = -(-sum(t.numel() for t in tensors) // SAMPLE) or 1
        taken, offset = [], 0
        for tensor in tensors:
            taken.append(tensor[offset::step])
            offset = (offset - tensor.numel()) % step
        return torch.cat(taken).float() if step > 1 or len(taken) > 1 else taken[0].float().clone()

    def _squares(self, module: nn.Module) -> dict[str, Tensor]:
        """Sum the squares of this rank's trainable weights by part; parts that the model lacks are left out."""
        named = [(part_of(name), local(p.detach())) for name, p in module.named_parameters() if p.requires_grad]
        norms = torch._foreach_norm([value for _, value in named])
        squares = {}
        for part in PARTS:
            if mine := [n.double().square() for (p, _), n in zip(named, norms, strict=True) if p == part]:
                squares[part] = torch.stack(mine).sum()
        return squares


def _trainable(module: nn.Module) -> Iterator[Tensor]:
    return (p for p in module.parameters() if p.requires_grad)
