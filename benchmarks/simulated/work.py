"""Sampling, old log-probabilities and updates on the simulated device, by the package's own code."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from benchmarks.clock import Phases
from benchmarks.models import Shape, build_model, word_tokenizer
from benchmarks.ours import Ours
from benchmarks.simulated.attention import simulated_attention
from benchmarks.simulated.beside import Asks, Beside, Found
from benchmarks.simulated.counts import Counts
from benchmarks.simulated.device import COUNTS, move, simulated
from benchmarks.simulated.spans import simulated_graphs, simulated_spans
from benchmarks.workloads import Workload, reward
from gspo_lightning.core.types import MiniBatch, Rollout
from gspo_lightning.loop.metrics.sums import MetricSums
from gspo_lightning.policy.adapters.lora import LoRA, add_adapters
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.routing import routers_of
from gspo_lightning.policy.routing.routing import Replay
from gspo_lightning.rollouts import GroupedSampler

__all__ = ["Job", "Outcome", "run_job", "sampled", "simulated_device"]

DENSE = Shape(64, 32, 2, 4, 2, 8, 48)
WORK = Workload(4, 4, (4, 12), 8, 20)
MIXTURE = Shape(64, 32, 2, 4, 2, 8, 24, experts=4, experts_per_token=2)


@dataclass(frozen=True)
class Job:
    """One rollout batch and one update.

    Args:
        shape: of the model; its weights are random.
        work: prompts and lengths of responses.
        replay: of the routers of a mixture of experts.
        adapters: train low-rank adapters.
        max_rows: decoded at the same time.
        max_tokens: of a micro-batch.
        asks: whom the run asks beside its policy.
    """

    shape: Shape = DENSE
    work: Workload = WORK
    replay: Replay = "off"
    adapters: bool = False
    max_rows: int = 512
    max_tokens: int = 120
    asks: Asks = "nobody"

    def build(self) -> Ours:
        """Model, sampler and optimizer on the CPU."""
        model = build_model(self.shape)
        if self.adapters:
            add_adapters(model, LoRA(r=2), seed=0)
            with torch.no_grad():
                for name, parameter in model.named_parameters():
                    if "lora_B" in name:  # zero at first: nothing of it would be seen
                        parameter.copy_(torch.linspace(-0.02, 0.02, parameter.numel()).view_as(parameter))
        ours = Ours(model, word_tokenizer(self.shape.vocabulary), self.work, max_tokens=self.max_tokens)
        ours.sampler = GroupedSampler(max_rows=self.max_rows)
        ours.old_logprobs.choice = "recompute"
        if self.shape.experts:
            ours.policy.routing = routers_of(ours.policy.backbone, self.replay, True)
        return ours


@dataclass
class Outcome:
    """What a job came to, on the CPU."""

    tokens: list[list[int]]
    sampled_logprobs: Tensor
    old_logprobs: Tensor
    gradients: dict[str, Tensor]
    weights: dict[str, Tensor]
    measured: dict[str, tuple[float, float]]
    rollout: Counts = field(default_factory=Counts)
    old: Counts = field(default_factory=Counts)
    update: Counts = field(default_factory=Counts)
    beside: Found = field(default_factory=Found)
    micro_batches: int = 0
    """Of the update."""
    old_micro_batches: int = 0


@contextlib.contextmanager
def simulated_device() -> Iterator[Counts]:
    """The device with its attention; yields what it counts."""
    with simulated() as counts, simulated_attention(), simulated_spans():
        yield counts


def run_job(job: Job, *, on_device: bool) -> Outcome:
    """Sample, evaluate the old policy, and make one update; here or on the simulated device."""
    ours = job.build()
    beside = Beside(ours, job.asks)
    if not on_device:
        ours.sampler.decode = "model"  # without the form for a CPU
        ours.optimizer = _optimizer(ours.policy)
        return _run(ours, beside)
    with simulated_device():
        move(ours.policy)
        beside.move()
        ours.optimizer = _optimizer(ours.policy)
        return _run(ours, beside)


def _optimizer(policy: Policy) -> torch.optim.AdamW:
    """Steps that follow the size of a gradient: with a small epsilon its sign, which may be that of rounding."""
    return torch.optim.AdamW([p for p in policy.parameters() if p.requires_grad], lr=1e-2, eps=1e-2)


def sampled(job: Job, *, graphs: bool = False) -> Counts:
    """What the device counts while a job samples, with or without recorded steps."""
    ours = job.build()
    with simulated_device() as counts, simulated_graphs() if graphs else contextlib.nullcontext():
        move(ours.policy)
        ours.generate()
        return counts.taken()


def _run(ours: Ours, beside: Beside) -> Outcome:
    COUNTS.clear()
    groups = ours.generate()
    rollout = COUNTS.taken()
    for response in _flat(groups):
        response.reward = reward(response.token_ids.tolist())
    batches, asked = beside.batches(ours, groups, 2)
    COUNTS.clear()
    batches = ours.prepare(batches)
    old = COUNTS.taken()
    batch = batches[1]
    measured, update = _update(ours, batch)
    with COUNTS.pause():
        parameters = {n: p for n, p in ours.policy.model.named_parameters() if p.requires_grad}
        return Outcome(
            tokens=[r.token_ids.tolist() for r in _flat(groups)],
            sampled_logprobs=torch.cat([r.logprobs for r in _flat(groups) if r.logprobs is not None]),
            old_logprobs=torch.cat(
                [p.old_logprobs.flatten() for p in batch.micro_batches if p.old_logprobs is not None]
            ),
            gradients={n: p.grad.cpu() for n, p in parameters.items() if p.grad is not None},
            weights={n: p.detach().cpu() for n, p in parameters.items()},
            measured=measured, rollout=rollout, old=old, update=update, beside=asked,
            micro_batches=len(batch.micro_batches), old_micro_batches=sum(len(b.micro_batches) for b in batches[1:]),
        )  # fmt: skip


def _update(ours: Ours, batch: MiniBatch) -> tuple[dict[str, tuple[float, float]], Counts]:
    """Gradient and step of a mini-batch; counts are of its micro-batches."""
    with COUNTS.pause():
        moved = batch.to(ours.policy.device)
    sums = MetricSums("full")
    COUNTS.clear()
    ours.accumulate(moved, Phases(), sums)
    counts = COUNTS.taken()
    ours.optimizer.step()
    return sums.reduce()[0], counts


def _flat(groups: Sequence[Sequence[Rollout]]) -> list[Rollout]:
    return [rollout for group in groups for rollout in group]
