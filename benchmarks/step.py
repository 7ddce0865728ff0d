"""A whole rollout batch, beside TRL: generation, old log-probabilities, four updates."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch

from benchmarks.clock import Phases, Summary, alternate, summarise
from benchmarks.models import MODELS, Shape, build_model, word_tokenizer
from benchmarks.ours import Ours
from benchmarks.peers.trl import TRL
from benchmarks.workloads import MINI_BATCHES, Workload
from gspo_lightning.policy.load.model_settings import Layout
from gspo_lightning.policy.packing.deal import DEFAULT_DEAL, Deal

__all__ = ["Comparison", "best_micro_batch", "compare", "micro_batch_sizes", "run_step"]


@dataclass
class Comparison:
    """Both sides on one model and workload; ``trl`` and ``ratio`` are None where only this package ran."""

    subject: str
    model: str
    workload: str
    rows: int
    response_tokens: int
    ours: Summary
    packed: bool = False
    """Whether this package left out padding and shared prompts; False: this model cannot, or padding was asked for."""
    trl: Summary | None = None
    trl_micro_batch: int | None = None
    """Rows; the fastest of ``trl_tried``."""
    trl_tried: dict[int, float] | None = None
    """CPU seconds by micro-batch size."""
    ratio: float | None = None
    """Median CPU seconds of TRL over those of this package; the trained tokens are the same."""
    ratio_low: float | None = None
    ratio_high: float | None = None
    """Extremes over rounds, each round's two sides having run one after the other."""
    flops: int = 0
    """Floating-point operations that the work needs at least."""
    floor: float | None = None
    """Seconds that the arithmetic alone takes at the matmul rate of this run."""
    floor_ratio: float | None = None
    products: float | None = None
    """Seconds that the products with weights alone take at their shapes; of whole steps."""

    @property
    def ours_per_token(self) -> float:
        """CPU seconds per trained response token."""
        return self.ours.cpu / self.response_tokens


def compare(
    subject: str,
    model: str,
    workload: str,
    work: Workload,
    sides: dict[str, Callable[[], Phases]],
    rounds: int,
) -> Comparison:
    """Let ``sides`` ("ours" and perhaps "trl") take turns."""
    found = alternate(sides, rounds)
    result = Comparison(subject, model, workload, work.rows, work.response_tokens, summarise(found["ours"]))
    if "trl" in found:
        result.trl = summarise(found["trl"])
        result.ratio = result.trl.cpu / result.ours.cpu
        each = [t.cpu["total"] / o.cpu["total"] for t, o in zip(found["trl"], found["ours"], strict=True)]
        result.ratio_low, result.ratio_high = min(each), max(each)
    return result


def micro_batch_sizes(work: Workload) -> list[int]:
    """All rows of a mini-batch, half of them, a quarter."""
    rows = work.rows // MINI_BATCHES
    return [rows // d for d in (1, 2, 4) if rows % d == 0]


def best_micro_batch(trl: TRL, run: Callable[[], Phases], tries: int = 1) -> dict[int, float]:
    """CPU seconds of ``run`` by TRL's micro-batch size; the fastest is set."""
    tried: dict[int, float] = {}
    for rows in micro_batch_sizes(trl.workload):
        trl.set_micro_batch(rows)
        tried[rows] = min(run().cpu["total"] for _ in range(tries))
    trl.set_micro_batch(min(tried, key=lambda rows: tried[rows]))
    return tried


def run_step(
    model: str,
    workload: str,
    work: Workload,
    *,
    rounds: int = 7,
    with_trl: bool = True,
    shape: Shape | None = None,
    tries: int = 1,
    choose: bool = True,
    layout: Layout = "auto",
    deal: Deal = DEFAULT_DEAL,
) -> Comparison:
    """Compare whole steps on identical prompts, identical response lengths and identical first weights.

    Args:
        model: name in :data:`benchmarks.models.MODELS`, or of ``shape``.
        workload: name to report.
        work: the work.
        rounds: at least 2; the first is dropped.
        with_trl: False measures this package alone.
        shape: another model.
        tries: runs per micro-batch size of TRL.
        choose: False leaves TRL at one micro-batch per mini-batch.
        layout: of this package.
        deal: which rows its mini-batches have, as ``data.deal``.
    """
    torch.set_num_threads(1)
    shape = shape or MODELS[model]
    first, tokenizer = build_model(shape), word_tokenizer(shape.vocabulary)
    ours = Ours(copy.deepcopy(first), tokenizer, work, layout=layout, deal=deal)
    sides: dict[str, Callable[[], Phases]] = {"ours": ours.step}
    tried = None
    if with_trl:
        trl = TRL(first, tokenizer, work)
        tried = best_micro_batch(trl, trl.step, tries) if choose else None
        sides["trl"] = trl.step
    result = compare("step", model, workload, work, sides, rounds)
    result.packed = ours.policy.packed
    if tried:
        result.trl_tried, result.trl_micro_batch = tried, min(tried, key=lambda rows: tried[rows])
    return result
