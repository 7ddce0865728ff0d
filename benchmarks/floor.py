"""What the arithmetic alone would take: the FLOP of a step at the best matmul rate of this machine, now.

No implementation of the same mathematics can be faster: every prompt is read once to sample and once to train,
whatever the number of its responses; nothing is computed for padding, for tokens that predict nothing, or twice; and
everything but matrix products is free. Old log-probabilities cost nothing, because sampling has computed them.

How fast a product can be depends on its shape: a step that decodes 20 rows reads every weight for 20 of them. So the
products with weights are timed at the shapes that occur, too (:func:`product_seconds`): what lies between them and the
floor is the machine's, what lies between them and a measured step is the implementation's.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.models import Shape
from benchmarks.workloads import Workload
from gspo_lightning.policy.kernels.processor import prefers_onednn

__all__ = ["Flops", "MatmulRate", "bandwidth", "matmul_rate", "product_seconds", "step_flops"]


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
    forward = 0
    per_pair = 4 * shape.heads * shape.head_dim * shape.layers
    lengths: list[list[int]] = work.lengths.tolist()
    for p, group in zip(work.prompt_lengths, lengths, strict=True):
        forward += 2 * shape.body * p + 2 * shape.head + per_pair * (p * (p + 1) // 2)
        for n in group:
            m = n - 1
            forward += 2 * (shape.body + shape.head) * m + per_pair * (m * p + m * (m + 1) // 2)
    return Flops(generate=forward, train=3 * forward)


@dataclass
class MatmulRate:
    """Best float32 rate of a square matrix product, FLOP per CPU second, and what each size reached.

    Through MKL or, where the package uses it, oneDNN.
    """

    best: float
    by_size: dict[int, float]


def matmul_rate(
    sizes: tuple[int, ...] = (512, 768, 1024, 1536, 2048), seconds: float = 0.2, dtype: torch.dtype = torch.float32
) -> MatmulRate:
    """Each size is repeated for about ``seconds`` CPU seconds; its fastest product counts."""
    found = {}
    for size in sizes:
        a, b = torch.randn(size, size).to(dtype), torch.randn(size, size).to(dtype)
        best = float("inf")
        for multiply in _libraries():
            multiply(a, b)
            spent = 0.0
            while spent < seconds:
                start = time.process_time()
                multiply(a, b)
                took = time.process_time() - start
                best, spent = min(best, took), spent + took
        found[size] = 2 * size**3 / best
    return MatmulRate(max(found.values()), found)


def _libraries() -> list[Callable[[Tensor, Tensor], Tensor]]:
    """Products [m, in] times [in, out] of PyTorch, and through oneDNN where the package uses it."""
    through = torch.ops.mkldnn._linear_pointwise
    return [torch.mm, *([lambda a, b: through(a, b.t(), None, "none", [], "")] if prefers_onednn() else [])]


def bandwidth(mebibytes: int = 512, tries: int = 5) -> float:
    """Best rate at which one thread reads memory that no cache holds, bytes per CPU second."""
    x = torch.ones(mebibytes << 18)
    best = float("inf")
    for _ in range(tries):
        start = time.process_time()
        x.sum()
        best = min(best, time.process_time() - start)
    return x.nbytes / best


def product_seconds(shape: Shape, work: Workload, mini_batches: int) -> float:
    """CPU seconds of a step's products with weights alone, at the shapes that occur.

    Sampling: all prompts at once, then a token of every response that has not ended, which leaves at once. Training:
    every mini-batch in one forward, and a backward that costs two. Attention is left out, and of a mixture all experts
    get the same number of tokens.
    """
    prompts = sum(work.prompt_lengths)
    lengths = work.lengths.flatten()
    decoding = Counter(int((lengths > t).sum()) for t in range(1, int(lengths.max())))
    products = _Products(shape)
    sampling = products.seconds(prompts, work.prompts)
    sampling += sum(times * products.seconds(rows, rows) for rows, times in decoding.items())
    tokens = (prompts + int((lengths - 1).sum())) // mini_batches
    return sampling + 3 * mini_batches * products.seconds(tokens, int(lengths.sum()) // mini_batches)


class _Products:
    """The weights of a model, random, each in both layouts."""

    def __init__(self, shape: Shape) -> None:
        inner, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        sizes = [(shape.hidden, inner), (shape.hidden, keys), (shape.hidden, keys), (inner, shape.hidden)]
        mlp = [(shape.hidden, shape.intermediate)] * 2 + [(shape.intermediate, shape.hidden)]
        self.share = shape.experts_per_token / shape.experts if shape.experts else 1.0
        self.layers = [(_weights(sizes), _weights(mlp * max(shape.experts, 1))) for _ in range(shape.layers)]
        self.head = _weights([(shape.hidden, shape.vocabulary)])

    def seconds(self, tokens: int, scored: int, tries: int = 3) -> float:
        """CPU seconds of one forward, in the faster layout; ``scored`` tokens go through the head."""
        each = max(1, round(tokens * self.share))
        inputs = {(n, w.shape[0]): torch.randn(n, w.shape[0]) for n in (tokens, each) for w in self._all()}
        inputs |= {(scored, w.shape[0]): torch.randn(scored, w.shape[0]) for _, w in self.head}
        best = float("inf")
        for layout, multiply in itertools.product((0, 1), _libraries()):
            for _ in range(tries):
                start = time.process_time()
                for attention, mlp in self.layers:
                    for n, weights in ((tokens, attention), (each, mlp)):
                        for pair in weights:
                            multiply(inputs[n, pair[layout].shape[0]], pair[layout])
                for pair in self.head:
                    multiply(inputs[scored, pair[layout].shape[0]], pair[layout])
                best = min(best, time.process_time() - start)
        return best

    def _all(self) -> list[Tensor]:
        return [w for attention, mlp in self.layers for _, w in (*attention, *mlp)]


def _weights(sizes: Sequence[tuple[int, int]]) -> list[tuple[Tensor, Tensor]]:
    """[in, out] of each, as a linear layer stores it (transposed), and contiguous."""
    return [(torch.randn(o, i).t(), torch.randn(i, o)) for i, o in sizes]
