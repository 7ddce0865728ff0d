"""Token log-probabilities and entropies straight from hidden states, in chunks.

A [N, S, V] tensor of logits never exists: rows of hidden states pass through the output head ``chunk`` at a time, and
their logits are recomputed in the backward pass. At V = 151,936 that is the largest tensor of a naive trainer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

__all__ = ["logprobs_from_logits", "token_logprobs"]

DEFAULT_CHUNK = 1024
"""Rows of hidden states per chunk. At V = 151,936 one chunk of float32 logits is 0.6 GiB."""
BUFFER = {True: 1 << 17, False: 1 << 24}
"""Numbers in the buffer that logits pass through, on a CPU (half a MiB: what its cache holds) and elsewhere."""


def logprobs_from_logits(logits: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probability of each target and the entropy of its distribution, in float32 or wider.

    Args:
        logits: [M, V], any float dtype; upcast before the log-softmax (in bf16 it alone costs 1e-3 nats).
        targets: [M] int64.
        temperature: divides the logits; it belongs into every log-probability that training uses.

    Returns:
        ``logprobs`` [M] and ``entropies`` [M], nats; both have gradients.
    """
    chosen, entropy = _LogProbs.apply(logits, targets, temperature)  # type: ignore[no-untyped-call]
    return chosen, entropy


class _LogProbs(torch.autograd.Function):
    """Of [M, V] tensors only the logits are kept, and only their gradient is made.

    The rest passes through a buffer of a few rows, which on a CPU stays in the cache: a plain log-softmax and entropy
    read and write tensors of that size a dozen times.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        wide = torch.promote_types(logits.dtype, torch.float32)
        log_z, entropy, chosen = (logits.new_empty(len(logits), dtype=wide) for _ in range(3))
        for rows in _blocks(logits):
            part = logits[rows].to(wide)
            top = part.amax(-1, keepdim=True)
            below = torch.sub(part, top).div_(temperature)
            wanted = below.gather(-1, targets[rows].unsqueeze(-1)).squeeze(-1)
            weights = torch.exp(below)
            total = weights.sum(-1)
            shift = total.log()
            chosen[rows] = wanted - shift
            # H = log Z - sum p x, with x relative to the largest: nothing cancels
            entropy[rows] = shift - weights.mul_(below).sum(-1).div_(total)
            log_z[rows] = top.squeeze(-1).div_(temperature).add_(shift)
        ctx.save_for_backward(logits, targets, log_z, entropy)
        ctx.temperature = temperature
        ctx.set_materialize_grads(False)
        return chosen, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_chosen: Tensor | None, d_entropy: Tensor | None) -> tuple[Tensor | None, None, None]:
        logits, targets, log_z, entropy = ctx.saved_tensors
        gradient = torch.empty_like(logits)
        for rows in _blocks(logits):
            logp = logits[rows].to(log_z.dtype).div(ctx.temperature).sub_(log_z[rows].unsqueeze(-1))
            part = torch.exp(logp)
            if d_entropy is None:
                scale = None
            else:  # dH / dx = -p (log p + H)
                scale = logp.add_(entropy[rows].unsqueeze(-1)).mul_(d_entropy[rows].unsqueeze(-1))
            if d_chosen is not None:
                own = d_chosen[rows].unsqueeze(-1)
                part = part.mul_(-own if scale is None else scale.add_(own).neg_())
                part.scatter_add_(-1, targets[rows].unsqueeze(-1), own)
            elif scale is not None:
                part = part.mul_(scale.neg_())
            else:
                part.zero_()
            gradient[rows] = part.div_(ctx.temperature)
        return gradient, None, None


def _blocks(logits: Tensor) -> list[slice]:
    """Rows that pass through the buffer at a time; where there are only shapes, one block stands for all."""
    size = max(1, BUFFER[logits.device.type == "cpu"] // max(1, logits.shape[-1]))
    rows = range(0, len(logits), size)
    return [slice(first, first + size) for first in (rows[:1] if isinstance(logits, FakeTensor) else rows)]


def token_logprobs(
    head: Callable[[Tensor], Tensor],
    hidden: Tensor,
    targets: Tensor,
    *,
    temperature: float = 1.0,
    chunk: int = DEFAULT_CHUNK,
) -> tuple[Tensor, Tensor]:
    """Log-probabilities of ``targets`` under ``head(hidden)``, ``chunk`` rows of logits at a time.

    Args:
        head: maps hidden states [m, D] to logits [m, V] (output embedding, scaling and soft-capping).
        hidden: [M, D], the hidden states that predict the targets.
        targets: [M] int64.
        temperature: sampling temperature, > 0.
        chunk: rows per chunk.

    Returns:
        ``logprobs`` [M] and ``entropies`` [M] in nats, float32 or wider.

    >>> head = torch.nn.Linear(3, 5, bias=False)
    >>> x, y = torch.randn(4, 3), torch.tensor([0, 1, 2, 3])
    >>> whole = torch.log_softmax(head(x), -1).gather(1, y[:, None])[:, 0]
    >>> torch.allclose(token_logprobs(head, x, y, chunk=2)[0], whole, atol=1e-6)
    True
    """
    if temperature <= 0:
        raise ValueError(f"temperature must be > 0, got {temperature}")

    def run(part: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
        return logprobs_from_logits(head(part), wanted, temperature)

    chosen: list[Tensor] = []
    entropies: list[Tensor] = []
    # No rows are one empty part: it runs, too, so that every parameter of the head gets a gradient.
    for part, wanted in zip(torch.split(hidden, chunk), torch.split(targets, chunk), strict=True):
        if torch.is_grad_enabled() and hidden.shape[0] > chunk:
            found = checkpoint(run, part, wanted, use_reentrant=False, preserve_rng_state=False)
        else:
            found = run(part, wanted)
        chosen.append(found[0])
        entropies.append(found[1])
    return torch.cat(chosen), torch.cat(entropies)
