"""Hidden states that predict response tokens, and the KL of two policies over the whole vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

Head = Callable[[Tensor], Tensor]


def _same(values: Tensor) -> Tensor:
    return values


@dataclass(frozen=True, slots=True)
class States:
    """States of M response tokens: ``hidden`` [M, D] predicts ``targets`` [M], at ``steps`` [M] of ``rows`` [M].

    Under context parallelism the first two are of m tokens of any rank, and ``collect`` turns values [m, ...] computed
    from them into those [M, ...] of this rank's tokens.
    """

    hidden: Tensor
    targets: Tensor
    rows: Tensor
    steps: Tensor
    collect: Callable[[Tensor], Tensor] = _same

    def order(self) -> Tensor:
        """Return the permutation [M] that sorts tokens by row and step, whatever their layout."""
        width = int(self.steps.max()) + 1 if len(self.steps) else 1
        return (self.rows * width + self.steps).argsort()


def scattered(states: States, values: Tensor, shape: torch.Size) -> Tensor:
    """Return values [M] of response tokens at their places in [N, T] = ``shape``; 0 elsewhere."""
    empty = torch.zeros(shape, dtype=values.dtype, device=values.device)
    return empty.index_put((states.rows, states.steps), values)


@dataclass(frozen=True, slots=True)
class Distribution:
    """Prediction of a policy for M response tokens, sorted by row and step: logits are ``head(hidden)``.

    Stores hidden states [M, D] instead of [M, V] logits, which are recomputed chunk by chunk.
    """

    hidden: Tensor
    head: Head


def vocabulary_kl(heads: tuple[Head, Head], hidden: tuple[Tensor, Tensor], temperature: float, chunk: int) -> Tensor:
    """Return KL(p || q) over the vocabulary for M tokens, [M] in nats, float32 or wider; gradients go to ``p`` alone.

    Computes ``chunk`` tokens at a time; the backward pass keeps hidden states, never logits.

    Args:
        heads: of ``p`` and of ``q``, from hidden states [m, D] to logits [m, V]; D may differ.
        hidden: [M, D] of ``p``, with gradient, and of ``q``.
        temperature: divides the logits of both, > 0.
        chunk: tokens whose logits exist at the same time, >= 1.

    >>> mine, theirs = torch.tensor([[0.0, 0.0]]), torch.tensor([[0.0, 1.0986123]])  # 1/2 : 1/2 and 1/4 : 3/4
    >>> same = torch.nn.Identity()
    >>> round(float(vocabulary_kl((same, same), (mine, theirs), 1.0, 8)), 4)  # log(2) / 2 - log(1.5) / 2
    0.1438
    """

    head_p, head_q = heads
    hidden_p, hidden_q = hidden

    def run(part_p: Tensor, part_q: Tensor) -> Tensor:
        with torch.no_grad():
            log_q = _log_softmax(head_q(part_q), temperature)
        log_p = _log_softmax(head_p(part_p), temperature)
        return (log_p.exp() * (log_p - log_q)).sum(-1)

    kl: list[Tensor] = []
    # without tokens, one empty chunk still runs, so every parameter of the head gets a gradient
    for part_p, part_q in zip(torch.split(hidden_p, chunk), torch.split(hidden_q, chunk), strict=True):
        if torch.is_grad_enabled():
            kl.append(checkpoint(run, part_p, part_q, use_reentrant=False, preserve_rng_state=False))
        else:
            kl.append(run(part_p, part_q))
    return torch.cat(kl)


def _log_softmax(logits: Tensor, temperature: float) -> Tensor:
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return torch.log_softmax(wide / temperature, dim=-1)
