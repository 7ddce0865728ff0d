"""One optimizer step on its way through Lightning's hooks: its mini-batch, and what was measured of it so far."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.loggers import Logger

from gspo_lightning.distributed import all_sum
from gspo_lightning.metrics.meter import UpdateMeter
from gspo_lightning.metrics.sources import CLIPPED, clipped_scalars
from gspo_lightning.metrics.sums import MetricSums
from gspo_lightning.metrics.update import update_scalars
from gspo_lightning.old_policy.logprobs import OldLogProbs
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.routing import LOAD, routing_scalars
from gspo_lightning.types import MiniBatch

__all__ = ["Update"]


@dataclass(slots=True)
class Update:
    """Handed from hook to hook; every hook adds to ``values``.

    Args:
        batch: what is trained on.
        on_policy: it is the first update on its rollouts, and the snapshot they come from is the policy of now.
        started: seconds of ``time.perf_counter`` when it began.
        values: what was measured, under the tags of docs/metrics.md.
    """

    batch: MiniBatch
    on_policy: bool
    started: float
    values: dict[str, float] = field(default_factory=dict)

    def show(self, module: LightningModule) -> None:
        """Reward and response length in the progress bar of any trainer."""
        shown = {tag: self.values[tag] for tag in ("reward/mean", "response/length") if tag in self.values}
        module.log_dict(shown, prog_bar=True, logger=False, batch_size=1)

    @property
    def gradient_norm(self) -> float:
        """Over all ranks, before clipping."""
        return self.values["optim/gradient_norm"]

    @property
    def suspects(self) -> dict[str, float]:
        """What is not finite where an update must not be made, by names that a person reads."""
        values = self.values
        return {
            "loss": values["loss"], "gradient norm": self.gradient_norm, "largest ratio": values["ratio/max"],
        }  # fmt: skip

    def measure(
        self,
        sums: MetricSums,
        iteration: dict[str, float],
        meter: UpdateMeter,
        old: OldLogProbs,
        policy: Policy,
        sources: Sequence[str] = (),
    ) -> None:
        """Take in what its micro-batches have added up to, over all ranks.

        Args:
            sums: of the micro-batches.
            iteration: metrics of the rollout batch; gets the noise of the sampler, if it is known.
            meter: of the run.
            old: is told that noise.
            policy: is trained.
            sources: names of those of a mixture.
        """
        pairs, vectors, maxima = sums.reduce()
        scalars = update_scalars(pairs)
        if self.on_policy:
            old.note(pairs)
            iteration |= {tag: value for tag, value in scalars.items() if tag.startswith("noise/")}
        values = iteration | scalars | maxima
        values |= meter.of_ratios(values, vectors, self.batch.index)
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
        """The update is made: say what was measured, and how long it took."""
        seconds = time.perf_counter() - self.started
        self.values["time/update_s"] = seconds
        self.values["throughput/trained_tokens_per_s"] = self.values["data/tokens_per_update"] / max(seconds, 1e-9)
        for logger in loggers:
            logger.log_metrics(self.values, step=step)
