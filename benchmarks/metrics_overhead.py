"""What measuring costs: whole iterations with everything measured beside iterations with nothing measured.

``python -m benchmarks.metrics_overhead`` on the 8.9M model; one thread, CPU seconds, the sides take turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from torch.utils.tensorboard import SummaryWriter

from benchmarks.clock import TOTAL, Phases, alternate
from benchmarks.models import MODELS, build_model, word_tokenizer
from benchmarks.ours import Ours
from benchmarks.workloads import WORKLOADS, reward
from gspo_lightning.core.types import MiniBatch, Rollout
from gspo_lightning.loop.metrics.responses import distribution_scalars, extremes, measure_distributions
from gspo_lightning.loop.metrics.rollouts import measure_rollouts
from gspo_lightning.loop.metrics.update import update_scalars
from gspo_lightning.loop.metrics.update_metrics import UpdateMetrics
from gspo_lightning.objectives import objective
from gspo_lightning.training.callbacks.collapse import SIGNATURES, Watch
from gspo_lightning.training.callbacks.dashboard import RATIO_BINS
from gspo_lightning.training.callbacks.sink import write_counts


class Measured(Ours):
    """An iteration as the module makes it, with everything that it measures and writes, or with nothing."""

    full = False

    def begin(self, folder: Path) -> None:
        self.update_metrics = UpdateMetrics("full")
        self.update_metrics.watch(self.policy)
        self.watch = Watch(kind() for kind in SIGNATURES.values())
        self.writer = SummaryWriter(str(folder))
        self.done = 0

    def step(self) -> Phases:
        if self.full:
            return self._step()
        with mock.patch.object(objective, "measure", return_value={}):
            return self._step()

    def _step(self) -> Phases:
        phases = self.phases()
        with phases(TOTAL):
            with phases("generate"):
                groups = self.generate()
            rollouts = [r for g in groups for r in g]
            for rollout in rollouts:
                rollout.reward = reward(rollout.token_ids.tolist())
            batches = self.prepare(self.pack(groups))
            scalars = self._measure_rollouts(rollouts) if self.full else {}
            for place, batch in enumerate(batches):
                self._update(batch, place, scalars, last=place == len(batches) - 1)
        return phases

    def _update(self, batch: MiniBatch, place: int, scalars: dict[str, float], *, last: bool) -> None:
        sums = self.update_metrics.sums() if self.full else UpdateMetrics("off").sums()
        self.optimizer.zero_grad(set_to_none=True)
        self.accumulate(batch, self.phases(), sums, on_policy=place == 0)
        pairs, vectors, maxima = sums.reduce()
        norm = float(torch.nn.utils.clip_grad_norm_(self.policy.model.parameters(), 1.0))
        if not self.full:
            self.optimizer.step()
            return
        values = scalars | update_scalars(pairs) | maxima
        values |= self.update_metrics.of_ratios(values, vectors, place) | self.update_metrics.before_step(
            self.policy, norm
        )
        self.done += 1
        self.watch.see(values, self.done, last=last)
        self.optimizer.step()
        values |= self.update_metrics.after_step(self.policy)
        for tag, value in values.items():
            self.writer.add_scalar(tag, value, self.done)
        for tag, counts in self.update_metrics.histograms.items():
            if any(counts):
                write_counts(self.writer, tag, np.asarray(counts), RATIO_BINS, self.done)

    def _measure_rollouts(self, rollouts: Sequence[Rollout]) -> dict[str, float]:
        cpu = torch.device("cpu")
        spread = measure_distributions(rollouts, cpu)
        extremes(rollouts)
        for name in ("length", "reward", "advantage"):
            self.writer.add_histogram(name, np.asarray(spread[name]), self.done)
        return measure_rollouts(rollouts, cpu) | distribution_scalars(spread)


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.metrics_overhead", description=__doc__)
    parser.add_argument("--model", choices=sorted(MODELS), default="10m")
    parser.add_argument("--workload", choices=sorted(WORKLOADS), default="balanced")
    parser.add_argument("--rounds", type=int, default=8, help="pairs of iterations; the first is not counted")
    parser.add_argument("--json", type=Path, default=Path("benchmarks/results/metrics_overhead.json"))
    options = parser.parse_args(list(argv))
    torch.set_num_threads(1)
    shape = MODELS[options.model]
    model = build_model(shape)
    side = Measured(model, word_tokenizer(shape.vocabulary), WORKLOADS[options.workload])
    with tempfile.TemporaryDirectory() as folder:
        side.begin(Path(folder))

        def run(full: bool) -> Phases:
            side.full = full
            return side.step()

        found = alternate({"nothing": lambda: run(False), "everything": lambda: run(True)}, options.rounds)
    pairs = [(a.cpu[TOTAL], b.cpu[TOTAL]) for a, b in zip(found["nothing"], found["everything"], strict=True)]
    shares = [b / a - 1 for a, b in pairs]
    result = {
        "model": options.model, "workload": options.workload, "pairs": [[round(x, 4) for x in pair] for pair in pairs],
        "overhead_median": round(statistics.median(shares), 4), "overhead_least": round(min(shares), 4),
        "overhead_most": round(max(shares), 4),
        "overhead_of_sums": round(sum(b for _, b in pairs) / sum(a for a, _ in pairs) - 1, 4),
    }  # fmt: skip
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
