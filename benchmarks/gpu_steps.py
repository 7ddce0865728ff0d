"""Whole training steps for :mod:`benchmarks.gpu_check`: one rollout, and several token budgets on its responses."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from benchmarks.clock import TOTAL, Phases
from benchmarks.gpu_parts import Bench
from benchmarks.models import Shape, word_tokenizer
from benchmarks.ours import Groups, Ours
from benchmarks.peers.trl import TRL, trl_version
from benchmarks.step import micro_batch_sizes
from benchmarks.workloads import Workload, reward
from gspo_lightning.policy.adapters.lora import LoRA
from gspo_lightning.policy.packing.memory import empty_cache

__all__ = ["BUDGETS", "measure_step"]

BUDGETS = (16384, 8192, 4096)
"""Tokens of a micro-batch, one after another on the same responses."""


def measure_step(
    bench: Bench, model: str, workload: str, lora: LoRA | None = None, budgets: Sequence[int] = BUDGETS
) -> dict[str, Any]:
    """A step in bf16-mixed, wall seconds by phase, beside TRL with transformers' ``generate``.

    Adapters and mixtures are trained without the peer, which makes and computes them another way.

    Raises:
        OutOfMemoryError: no budget fits.
    """
    shape, work = bench.shape(model), bench.work(workload)
    found: dict[str, Any] = {"model": model, "workload": workload, "rows": work.rows}
    found |= {"response_tokens": work.response_tokens, "lora": None if lora is None else [lora.r, lora.alpha]}
    found["ours"] = _our_step(bench, shape, work, lora, budgets)
    gc.collect()
    if not bench.peer or lora or shape.experts:
        return found
    if trl_version() is None:
        return found | {"trl": "absent"}
    found["trl"] = _trl_step(bench, shape, work)
    return found | {"ratio": found["trl"]["step_s"] / found["ours"]["step_s"]}


def _our_step(bench: Bench, shape: Shape, work: Workload, lora: LoRA | None, budgets: Sequence[int]) -> dict[str, Any]:
    """One rollout, timed after a short one that compiles; then old log-probabilities and updates at each budget."""
    ours = Ours(bench.model(shape, lora), word_tokenizer(shape.vocabulary), work, context=bench.autocast,
                sync=bench.sync)  # fmt: skip
    mine: dict[str, Any] = {"packed": ours.policy.packed}
    ours.workload = replace(work, median=4, longest=4, sigma=0.0)
    _generated(ours, Phases(bench.sync))
    ours.workload = work
    phases = Phases(bench.sync)
    with bench.peak(mine, "generate_peak_mib", extra=False):
        groups = _generated(ours, phases)
    mine["generate_s"] = phases.wall["generate"]
    mine["generated_tokens_per_s"] = work.response_tokens / mine["generate_s"]
    _trained(bench, ours, groups, budgets[-1], {})  # compiles
    mine["budgets"] = {str(budget): _trained(bench, ours, groups, budget, {}) for budget in budgets}
    fits = {k: v for k, v in mine["budgets"].items() if "train_s" in v}
    if not fits:
        raise torch.OutOfMemoryError(f"{work.rows} rows do not fit, not even {budgets[-1]} tokens at a time")
    mine["max_tokens"] = int(min(fits, key=lambda k: fits[k]["train_s"]))
    return mine | {"step_s": mine["generate_s"] + fits[str(mine["max_tokens"])]["train_s"]}


def _generated(ours: Ours, phases: Phases) -> Groups:
    with phases("generate"):
        groups = ours.generate()
    for rollout in (r for g in groups for r in g):
        rollout.reward = reward(rollout.token_ids.tolist())
    return groups


def _trained(bench: Bench, ours: Ours, groups: Groups, budget: int, found: dict[str, Any]) -> dict[str, Any]:
    """Old log-probabilities and four updates on given responses: seconds by phase, and the peak.

    As in a run, what sampling keeps is freed when an update does not fit.
    """
    ours.max_tokens, phases, fits = budget, Phases(bench.sync), False
    try:
        with bench.peak(found, "peak_mib", extra=False), phases(TOTAL):
            ours.train_on_policy(groups, phases)
        fits = True
    except torch.OutOfMemoryError:
        ours.optimizer.zero_grad(set_to_none=True)
    if not fits:  # outside the except clause: the exception holds the tensors of the attempt
        if ours.policy.decoding.release():
            empty_cache()
            return _trained(bench, ours, groups, budget, {"decoder": "freed"})
        return {"error": "out of memory"}
    found["train_s"] = phases.wall[TOTAL]
    return found | {"phases_s": {k: v for k, v in phases.wall.items() if k != TOTAL}}


def _trl_step(bench: Bench, shape: Shape, work: Workload) -> dict[str, Any]:
    """One rollout and the fastest training on it over three micro-batch sizes."""
    tokenizer = word_tokenizer(shape.vocabulary)
    trl = TRL(bench.model(shape), tokenizer, work, cpu=bench.toy, bf16=True, sync=bench.sync)
    tried: dict[int, Any] = {}
    best: tuple[Phases, float] | None = None
    batch = trl.rollout()
    rollout = trl.phases
    for rows in micro_batch_sizes(work):
        trl.set_micro_batch(rows)
        peak: dict[str, float] = {}
        try:
            with bench.peak(peak, "mib", extra=False):
                train = trl.train(batch)
        except torch.OutOfMemoryError:
            tried[rows] = "out of memory"
            trl.trainer.optimizer.zero_grad()
            continue
        tried[rows] = train.wall[TOTAL]
        if best is None or train.wall[TOTAL] < best[0].wall[TOTAL]:
            best = train, peak["mib"]
    if best is None:
        raise torch.OutOfMemoryError(f"TRL: none of {micro_batch_sizes(work)} rows at a time fits")
    for name, seconds in best[0].wall.items():
        rollout.wall[name] = rollout.wall.get(name, 0.0) + seconds
    return {"train_s_by_micro_batch": tried, "peak_mib": best[1]} | _seconds(rollout, work)


def _seconds(phases: Phases, work: Workload) -> dict[str, Any]:
    wall = phases.wall
    return {
        "step_s": wall[TOTAL],
        "phases_s": {k: v for k, v in wall.items() if k != TOTAL},
        "generated_tokens_per_s": work.response_tokens / wall["generate"],
    }
