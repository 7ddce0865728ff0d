"""Token log-probabilities and entropies straight from hidden states, in chunks.

A [N, S, V] tensor of logits never exists: rows of hidden states pass through the output head ``chunk`` at a time, and
their logits are recomputed in the backward pass. At V = 151,936 that is the largest tensor of a naive trainer.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

__all__ = ["logprobs_from_logits", "token_logprobs"]

DEFAULT_CHUNK = 1024
"""Rows of hidden states per chunk. At V = 151,936 one chunk of float32 logits is 0.6 GiB."""


def logprobs_from_logits(logits: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probability of each target and the entropy of its distribution, in float32 or wider.

    Args:
        logits: [M, V], any float dtype; upcast before the log-softmax (in bf16 it alone costs 1e-3 nats).
        targets: [M] int64.
        temperature: divides the logits; it belongs into every log-probability that training uses.

    Returns:
        ``logprobs`` [M] and ``entropies`` [M], nats; the entropies carry no gradient history cost of their own.
    """
    logits = logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits
    if temperature != 1.0:
        logits = logits / temperature
    log_z = torch.logsumexp(logits, dim=-1)
    chosen = logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1) - log_z
    # H = log Z - sum p x. ``softmax`` of the logits, not exp(x - log Z): the same numbers, one kernel.
    entropy = log_z - (torch.softmax(logits, dim=-1) * logits).sum(-1)
    return chosen, entropy


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
