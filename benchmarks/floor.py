"""What the arithmetic alone would take: the FLOP of a step at the best matmul rate of this machine, now.

No implementation of the same mathematics can be faster: every prompt is read once to sample and once to train,
whatever the number of its responses; nothing is computed for padding, for tokens that predict nothing, or twice; and
everything but matrix products is free. Old log-probabilities cost nothing, because sampling has computed them.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from benchmarks.models import Shape
from benchmarks.workloads import Workload

__all__ = ["Flops", "MatmulRate", "matmul_rate", "step_flops"]


@dataclass(frozen=True)
class Flops:
    """Floating-point operations of one rollout batch; a multiplication and an addition are two."""

    generate: int
    train: int

    @property
    def total(self) -> int:
        """Of a whole step."""
        return self.generate + self.train


def step_flops(shape: Shape, work: Workload) -> Flops:
    """FLOP of sampling a batch (forward) and of training on it once (forward and backward: three times that).

    A response of n tokens to a prompt of p: n - 1 of its tokens go through the layers, because the last predicts
    nothing, and n - 1 hidden states through the head; the prompt adds p and 1, once for all responses of its group.
    A token at position j attends to j + 1 positions; a pair of positions costs 4 FLOP per element of a head: 2 for the
    score and 2 for the weighted sum.
    """
    low, high = work.prompt_tokens
    forward = 0
    per_pair = 4 * shape.heads * shape.head_dim * shape.layers
    lengths: list[list[int]] = work.lengths.tolist()
    for i, group in enumerate(lengths):
        p = low + round((high - low) * i / max(work.prompts - 1, 1))
        forward += 2 * shape.body * p + 2 * shape.head + per_pair * (p * (p + 1) // 2)
        for n in group:
            m = n - 1
            forward += 2 * (shape.body + shape.head) * m + per_pair * (m * p + m * (m + 1) // 2)
    return Flops(generate=forward, train=3 * forward)


@dataclass
class MatmulRate:
    """Best float32 rate of a square matrix product, FLOP per CPU second, and what each size reached."""

    best: float
    by_size: dict[int, float]


def matmul_rate(sizes: tuple[int, ...] = (512, 768, 1024, 1536, 2048), seconds: float = 0.2) -> MatmulRate:
    """Each size is repeated for about ``seconds`` CPU seconds; its fastest product counts."""
    found = {}
    for size in sizes:
        a, b = torch.randn(size, size), torch.randn(size, size)
        torch.mm(a, b)
        best, spent = float("inf"), 0.0
        while spent < seconds:
            start = time.process_time()
            torch.mm(a, b)
            took = time.process_time() - start
            best, spent = min(best, took), spent + took
        found[size] = 2 * size**3 / best
    return MatmulRate(max(found.values()), found)
