"""Waits of the host for copies from pageable memory, at sizes where they matter: a micro-batch of 16,384 tokens."""

from __future__ import annotations

from collections import Counter

import torch

from benchmarks.memory import frozen_groups
from benchmarks.simulated.work import simulated_device
from benchmarks.workloads import Workload
from gspo_lightning.core.types import MicroBatch
from gspo_lightning.loop.advantages.assign import assign_advantages
from gspo_lightning.loop.advantages.shaping import Shaping
from gspo_lightning.loop.advantages.within_groups import GroupNormalised
from gspo_lightning.policy.attention.flex import FlexPlan
from gspo_lightning.policy.attention.layout import PackedLayout
from gspo_lightning.policy.packing.rollout_batch import RolloutBatch

__all__ = ["TOKENS", "large_micro_batch", "waits_before_the_model"]

TOKENS = 16_384
"""Token budget of the micro-batch: the default of ``gspo fit``."""


def large_micro_batch() -> MicroBatch:
    """Return rows of eight prompts with eight responses each, as many as the budget takes."""
    work = Workload(8, 8, (64, 128), 400, 1024)
    groups = frozen_groups(work, 1000)
    for number, rollout in enumerate(r for g in groups for r in g):
        rollout.reward = float(number % 2)
    assign_advantages(groups, GroupNormalised(), Shaping(), torch.device("cpu"))
    batches = RolloutBatch.of(groups, mini_batches=1, max_tokens=TOKENS, packed=True).mini_batches
    return max(batches[0].micro_batches, key=lambda part: part.num_tokens)


def waits_before_the_model() -> Counter[str]:
    """Count copies that the host waits for before the model reads a large micro-batch: rows, layout, masks."""
    part = large_micro_batch()
    with simulated_device() as counts:
        there = part.to("simulated")
        layout = PackedLayout.of(there)
        FlexPlan(layout.segments, layout.crossings, layout.longest, there.input_ids.device)
        return counts.taken().syncs
