"""How the cost of a step moves with one number: group size, response length, prompt length, vocabulary, prompts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from benchmarks.models import MODELS, Shape
from benchmarks.step import run_step
from benchmarks.workloads import Workload

__all__ = ["ScalingPoint", "points", "run_scaling"]

BASE = Workload(8, 8, (32, 32), 32, 96)


@dataclass
class ScalingPoint:
    """One point of a curve; milliseconds of CPU per trained response token."""

    varied: str
    value: int
    response_tokens: int
    ours: float
    trl: float | None
    ratio: float | None


def points() -> Iterator[tuple[str, int, Workload, Shape]]:
    """Everything else stays at 8 prompts of 32 tokens, 8 responses (median 32, longest 96) and the 1M model."""
    shape = MODELS["1m"]
    for size in (2, 4, 8, 16, 32):
        yield "group size", size, replace(BASE, group_size=size), shape
    for median in (8, 16, 32, 64, 128):
        yield "response length (median)", median, replace(BASE, median=median, longest=3 * median), shape
    for length in (8, 32, 128, 512):
        yield "prompt length", length, replace(BASE, prompt_tokens=(length, length)), shape
    for vocabulary in (512, 4096, 32_768, 151_936):
        yield "vocabulary", vocabulary, BASE, replace(shape, vocabulary=vocabulary)
    for prompts in (4, 8, 16, 32, 64):
        yield "prompts", prompts, replace(BASE, prompts=prompts), shape


def run_scaling(*, rounds: int = 4, with_trl: bool = True, only: str | None = None) -> list[ScalingPoint]:
    """Whole steps at every point; TRL runs one micro-batch per mini-batch, its usual best at this size."""
    found = []
    for varied, value, work, shape in points():
        if only is not None and only != varied:
            continue
        result = run_step("1m", varied, work, rounds=rounds, with_trl=with_trl, shape=shape, choose=False)
        found.append(
            ScalingPoint(
                varied,
                value,
                work.response_tokens,
                ours=1e3 * result.ours.cpu / work.response_tokens,
                trl=1e3 * result.trl.cpu / work.response_tokens if result.trl else None,
                ratio=result.ratio,
            )
        )
    return found
