"""State of one optimizer step across Lightning's hooks: its mini-batch and its measurements so far."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.loggers import Logger

from gspo_lightning.core.distributed import all_sum
from gspo_lightning.core.types import MiniBatch
from gspo_lightning.loop.metrics.sources import CLIPPED, clipped_scalars
from gspo_lightning.loop.metrics.sums import MetricSums
from gspo_lightning.loop.metrics.update import update_scalars
from gspo_lightning.loop.metrics.update_metrics import UpdateMetrics
from gspo_lightning.loop.old_policy.logprobs import OldLogProbs
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.routing import LOAD, routing_scalars


@dataclass(slots=True)
class Update:
    """State that each hook passes to the next; every hook adds to ``values``.

    Args:
        batch: the mini-batch to train on.
        on_policy: the first update on its rollouts, whose snapshot equals the current policy.
        started: seconds of ``time.perf_counter`` at its start.
        values: measured values, under the tags of docs/metrics.md.
    """

    batch: MiniBatch
    on_policy: bool
    started: float
    values: dict[str, float] = field(default_factory=dict)
    rates: list[Any] = field(default_factory=list)
    """Learning rates of the optimizer's groups while :meth:`scale_step` has changed them."""

    def scale_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Multiply learning rates by the root of the effective sample size (VCPO's rule for Adam, arXiv 2602.17616)."""
        self.rates = [group["lr"] for group in optimizer.param_groups]
        factor = self.values["correction/effective_sample_size"] ** 0.5
        for group, rate in zip(optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * factor

    def restore_rates(self, optimizer: torch.optim.Optimizer) -> None:
        """Undo :meth:`scale_step`, before a schedule reads the learning rates."""
        for group, rate in zip(optimizer.param_groups, self.rates, strict=bool(self.rates)):
            group["lr"] = rate
        self.rates = []

    def show(self, module: LightningModule) -> None:
        """Show reward and response length in the progress bar of any trainer."""
        headline = {tag: self.values[tag] for tag in ("reward/mean", "response/length") if tag in self.values}
        module.log_dict(headline, prog_bar=True, logger=False, batch_size=1)

    @property
    def gradient_norm(self) -> float:
        """Gradient norm over all ranks, before clipping."""
        return self.values["optim/gradient_norm"]

    @property
    def suspects(self) -> dict[str, float]:
        """Values that must be finite before an update, by readable names."""
        values = self.values
        return {
            "loss": values["loss"], "gradient norm": self.gradient_norm, "largest ratio": values["ratio/max"],
        }  # fmt: skip

    def measure(
        self,
        sums: MetricSums,
        iteration: dict[str, float],
        update_metrics: UpdateMetrics,
        old: OldLogProbs,
        policy: Policy,
        sources: Sequence[str] = (),
    ) -> None:
        """Add the sums of its micro-batches over all ranks to ``values``.

        Args:
            sums: of the micro-batches.
            iteration: metrics of the rollout batch; gets the noise of the sampler, if it is known.
            update_metrics: metrics of the run.
            old: receives that noise.
            policy: the trained policy.
            sources: names of the sources of a mixture.
        """
        pairs, vectors, maxima = sums.reduce()
        scalars = update_scalars(pairs)
        update_metrics.tokens = [] if sums.tokens is None else sums.tokens.rows()
        if self.on_policy:
            old.note(pairs)
            iteration |= {tag: value for tag, value in scalars.items() if tag.startswith("noise/")}
        values = iteration | scalars | maxima
        values |= update_metrics.of_ratios(values, vectors, self.batch.index)
        if policy.routing is not None and LOAD in vectors:
            values |= routing_scalars(vectors[LOAD], policy.routing)
        if CLIPPED in vectors:
            values |= clipped_scalars(vectors[CLIPPED], sources)
        tokens = all_sum(torch.tensor(self.batch.num_tokens, dtype=torch.float64, device=policy.device))
        self.values = values | {
            "data/mini_batch": float(self.batch.index),
            "data/tokens_per_update": float(tokens),
            "data/micro_batches": float(len(self.batch.micro_batches)),
        }

    def log(self, loggers: Iterable[Logger], step: int) -> None:
        """Log the values of the finished update, and how long it took."""
        seconds = time.perf_counter() - self.started
        self.values["time/update_s"] = seconds
        self.values["throughput/trained_tokens_per_s"] = self.values["data/tokens_per_update"] / max(seconds, 1e-9)
        for logger in loggers:
            logger.log_metrics(self.values, step=step)
