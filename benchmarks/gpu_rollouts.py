"""Rollouts for :mod:`benchmarks.gpu_check`: milliseconds a token by rows, and what the allocator keeps."""

from __future__ import annotations

import time
from typing import Any

import torch

from benchmarks.gpu_parts import Bench
from benchmarks.gpu_run import warnings_of_the_package
from benchmarks.models import word_tokenizer
from benchmarks.ours import Ours
from benchmarks.workloads import Workload

__all__ = ["measure_rollouts"]

ROWS, TOY_ROWS = (64, 256, 512), (8, 16)
TOKENS, TOY_TOKENS = (16, 144), (2, 6)
"""Response tokens of two rollouts, whose difference has no prompts, no first steps and no end in it."""
BLOCK = 256 << 20


def measure_rollouts(bench: Bench, models: tuple[str, ...] = ("1.7b", "0.6b")) -> dict[str, Any]:
    """Rollouts through :class:`gspo_lightning.rollouts.GroupedSampler` in bf16-mixed, its draws and joins included.

    For the first model also: memory that the allocator keeps after each of three equal rollouts, and a rollout after
    cached blocks have filled the card, as training leaves it.
    """
    found: dict[str, Any] = {}
    for model in models:
        shape = bench.shape(model)
        ours = Ours(bench.model(shape), word_tokenizer(shape.vocabulary), _work(8, 4), context=bench.autocast)
        found[model] = {f"{rows} rows": _rate(bench, ours, rows) for rows in (TOY_ROWS if bench.toy else ROWS)}
        if model == models[0]:
            size = (TOY_ROWS[0], TOY_TOKENS[1]) if bench.toy else (ROWS[0], TOKENS[1])
            found["three rollouts"] = [_rollout(bench, ours, *size) for _ in range(3)]
            filled = {"filled_mib": _fill_cache(bench)}
            found["after the cache was filled"] = filled | _rollout(bench, ours, *size)
        del ours
        if not bench.toy:
            torch.cuda.empty_cache()
    return found


def _work(rows: int, tokens: int) -> Workload:
    return Workload(max(1, rows // 8), min(8, rows), (64, 128), tokens, tokens, sigma=0.0)


def _rollout(bench: Bench, ours: Ours, rows: int, tokens: int) -> dict[str, Any]:
    """One rollout: seconds, the warnings of the package, and memory afterwards."""
    work = _work(rows, tokens)
    ours.workload, ours.prompts = work, work.make_prompts(ours.policy.model.config.vocab_size)
    with warnings_of_the_package() as said:
        bench.sync()
        start = time.perf_counter()
        ours.generate()
        bench.sync()
        seconds = time.perf_counter() - start
    found: dict[str, Any] = {"s": seconds, "said": said}
    if not bench.toy:
        found["reserved_mib"] = torch.cuda.memory_reserved() / 2**20
        found["allocated_mib"] = torch.cuda.memory_allocated() / 2**20
    return found


def _rate(bench: Bench, ours: Ours, rows: int) -> dict[str, Any]:
    """Milliseconds a step and tokens per second: the slope between two lengths, each after one that compiled."""
    lengths = TOY_TOKENS if bench.toy else TOKENS
    _rollout(bench, ours, rows, lengths[0])
    short, long = (_rollout(bench, ours, rows, tokens) for tokens in lengths)
    slope = (long["s"] - short["s"]) / (lengths[1] - lengths[0])
    rate = rows / slope if slope > 0 else None
    return {"ms_per_step": 1000 * slope, "tokens_per_s": rate, "short": short, "long": long}


def _fill_cache(bench: Bench) -> float | None:
    """Allocate nearly all memory and free it: the allocator keeps the blocks. Returns MiB."""
    if bench.toy:
        return None
    blocks = []
    free, _ = torch.cuda.mem_get_info()
    for _ in range(max(0, int(free * 0.97) // BLOCK)):
        blocks.append(torch.empty(BLOCK, dtype=torch.uint8, device=bench.device))
    return len(blocks) * BLOCK / 2**20
