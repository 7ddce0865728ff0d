"""Qwen3 mixture of experts for a few tokens: rows grouped by expert, two matrix products per expert."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["LeanExperts"]

BLOCK = "Qwen3MoeSparseMoeBlock"


class LeanExperts:
    """Experts with transposed copies of the weights; the router is the model's own module, for hooks on it.

    Args:
        block: a ``Qwen3MoeSparseMoeBlock`` of transformers.
    """

    def __init__(self, block: Any) -> None:
        self.router: nn.Module = block.gate
        self.act: nn.Module = block.experts.act_fn
        weights = block.experts.gate_up_proj, block.experts.down_proj
        self.gate_up, self.down = (w.transpose(1, 2).contiguous().unbind() for w in weights)

    @staticmethod
    def fit(block: nn.Module) -> bool:
        """True if the block is supported."""
        return type(block).__name__ == BLOCK

    def __call__(self, x: Tensor) -> Tensor:
        """Map [R, D] to [R, D]."""
        _, weights, chosen = self.router(x)
        experts, order = chosen.flatten().sort(stable=True)
        counts = torch.bincount(experts, minlength=len(self.gate_up)).tolist()
        rows = order // chosen.shape[1]
        found = []
        for part, gate_up, down in zip(x.index_select(0, rows).split(counts), self.gate_up, self.down, strict=True):
            if len(part):
                gate, up = torch.mm(part, gate_up).chunk(2, dim=-1)
                found.append(torch.mm(self.act(gate).mul_(up), down))
        outs = torch.cat(found).mul_(weights.flatten().index_select(0, order).unsqueeze(1))
        return torch.zeros_like(x).index_add_(0, rows, outs)
