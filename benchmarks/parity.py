"""Loss and gradient beside TRL's on the rollouts that TRL sampled; nothing else is measured unless they agree.

Old log-probabilities are moved, by the same numbers on both sides, so that some sequence ratios are clipped and others
are not: an unclipped first update would not tell a GSPO loss from a policy gradient.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.clock import Phases
from benchmarks.models import MODELS, Shape, build_model, word_tokenizer
from benchmarks.ours import Ours, recorded
from benchmarks.peers.trl import TRL, as_groups
from benchmarks.workloads import Workload
from gspo_lightning.loop.metrics.sums import MetricSums

__all__ = ["ParityCase", "perturb", "run_parity"]

LOSS, GRADIENT = 1e-6, 1e-5
"""Largest difference of the loss, and largest relative L2 difference of the whole gradient."""


@dataclass
class ParityCase:
    """How far apart the two sides are."""

    model: str
    workload: str
    loss: float
    gradient: float
    clipped: float
    """Share of sequences whose gradient the clip takes away."""

    @property
    def ok(self) -> bool:
        """Whether both differences are within bounds and the clip was active on some rows and not on all."""
        return self.loss <= LOSS and self.gradient <= GRADIENT and 0 < self.clipped < 1


def perturb(batch: dict[str, Any]) -> None:
    """Move old log-probabilities in place, to sequence ratios of 1 -+ 1e-3 (outside the clip range) and 1 -+ 1.5e-4."""
    old = batch["old_per_token_logps"]
    generator = torch.Generator().manual_seed(0)
    offsets = torch.tensor([1e-3, -1.5e-4, -1e-3, 1.5e-4, 0.0]).repeat(len(old))[: len(old)]
    mask = batch["completion_mask"].cpu().float()
    noise = 0.02 * torch.randn(old.shape, generator=generator) * mask
    noise = (noise - (noise.sum(1) / mask.sum(1)).unsqueeze(1)) * mask  # of mean 0 in each row
    batch["old_per_token_logps"] = old + ((offsets.unsqueeze(1) + noise) * mask).to(old)


def gradient_of(model: nn.Module) -> Tensor:
    """All gradients as one float64 vector."""
    gradients = [p.grad if p.grad is not None else torch.zeros_like(p) for p in model.parameters()]
    return torch.cat([g.double().flatten() for g in gradients])


def run_parity(
    model: str, workload: str, work: Workload, *, shape: Shape | None = None, max_tokens: int = 1024
) -> ParityCase:
    """Both sides on one batch of TRL's rollouts as a single mini-batch, cut differently."""
    torch.set_num_threads(1)
    shape = shape or MODELS[model]
    first, tokenizer = build_model(shape), word_tokenizer(shape.vocabulary)
    ours = Ours(copy.deepcopy(first), tokenizer, work, max_tokens=max_tokens)
    trl = TRL(first, tokenizer, work)
    batch = trl.rollout()
    perturb(batch)
    return compare_gradients(model, workload, ours, trl, batch)


def compare_gradients(model: str, workload: str, ours: Ours, trl: TRL, batch: dict[str, Any]) -> ParityCase:
    """The two gradients of one batch; both sides have the same weights."""
    theirs = trl.loss(batch)
    theirs.backward()
    ours.policy.train()
    groups = as_groups(batch, trl.prompts, trl.workload.group_size)
    (mini_batch,) = recorded(ours.cut(groups, 1))
    sums = MetricSums()
    ours.accumulate(mini_batch, Phases(), sums)
    measured = sums.reduce()[0]
    mine, other = gradient_of(ours.policy.model), gradient_of(trl.trainer.accelerator.unwrap_model(trl.model))
    clipped, rows = measured["clip_fraction_sequences"]
    return ParityCase(
        model,
        workload,
        loss=abs(measured["loss"][0] - float(theirs)),
        gradient=float((mine - other).norm() / other.norm()),
        clipped=clipped / rows,
    )
