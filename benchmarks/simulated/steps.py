"""What one decode step and one micro-batch cost: differences between runs of several sizes hold nothing else."""

from __future__ import annotations

from dataclasses import dataclass, replace

from benchmarks.simulated.beside import Asks
from benchmarks.simulated.pieces import kernels_of_pieces
from benchmarks.simulated.work import DENSE, Job, run_job, sampled
from benchmarks.workloads import Workload
from gspo_lightning.rollouts.sampler.device_decoder import WINDOW

__all__ = ["Step", "per_micro_batch", "per_micro_batch_beside", "per_step"]

TOKENS = (8, 24)
LAYERS = (1, 3)


@dataclass(frozen=True)
class Step:
    """One token for all rows; all casts of bf16-mixed are in the pieces between products."""

    syncs: float
    """Times that the host waits."""
    launches: float
    """Kernels per layer, with the compiler's for each piece between the products."""
    outside: float
    """Kernels beside the recorded step, on average: random numbers ahead, and what was drawn brought to the buffer."""


def per_step(*, adapters: bool = False) -> Step:
    """Of rollouts whose responses are all as long as each other: the slope between lengths, and between depths."""
    found = {(n, t): sampled(_equal(n, t, adapters)) for n in LAYERS for t in TOKENS}
    steps, pieces = TOKENS[1] - TOKENS[0], kernels_of_pieces()
    deep = [found[LAYERS[1], t] for t in TOKENS]
    syncs = deep[1].syncs.total() - deep[0].syncs.total()
    launches = {
        place: sum(pieces.get(name, 1) * count for name, count in counts.launches.items())
        for place, counts in found.items()
    }
    slopes = [launches[n, TOKENS[1]] - launches[n, TOKENS[0]] for n in LAYERS]
    short, long = (sampled(_equal(1, t, adapters), graphs=True) for t in (TOKENS[0], TOKENS[0] + WINDOW))
    outside = (long.launches.total() - long.launches["graph"]) - (short.launches.total() - short.launches["graph"])
    syncs += long.syncs.total() - short.syncs.total()
    return Step(syncs / steps, (slopes[1] - slopes[0]) / steps / (LAYERS[1] - LAYERS[0]), outside / WINDOW)


def _equal(layers: int, tokens: int, adapters: bool = False) -> Job:
    work = Workload(2, 3, (4, 12), tokens, tokens, sigma=0.0)
    return Job(replace(DENSE, layers=layers), work, adapters=adapters)


def per_micro_batch() -> float:
    """Of an update with all metrics and of the old log-probabilities before it, together."""
    found = run_job(Job(max_tokens=60), on_device=True)
    return found.update.syncs.total() / found.micro_batches + found.old.syncs.total() / found.old_micro_batches


def per_micro_batch_beside(asks: Asks) -> float:
    """Of what is asked beside the policy: a critic's values and its update; a teacher's log-probabilities."""
    found = run_job(Job(max_tokens=60, asks=asks), on_device=True).beside
    return found.counts.syncs.total() / found.micro_batches
