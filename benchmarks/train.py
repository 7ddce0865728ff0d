"""Four updates on identical frozen rollouts, beside TRL: forward, backward, optimizer, nothing else."""

from __future__ import annotations

import copy

import torch

from benchmarks.models import MODELS, Shape, build_model, word_tokenizer
from benchmarks.ours import Ours
from benchmarks.peers.trl import TRL, as_groups
from benchmarks.step import Comparison, best_micro_batch, compare
from benchmarks.workloads import Workload

__all__ = ["run_train"]


def run_train(
    model: str, workload: str, work: Workload, *, rounds: int = 7, shape: Shape | None = None, tries: int = 1
) -> Comparison:
    """Compare training alone on rollouts that TRL sampled, with TRL's old log-probabilities.

    Our side also cuts the rollouts into micro-batches in each round; TRL's are padded once, before the clock starts.
    """
    torch.set_num_threads(1)
    shape = shape or MODELS[model]
    first, tokenizer = build_model(shape), word_tokenizer(shape.vocabulary)
    ours = Ours(copy.deepcopy(first), tokenizer, work)
    ours.policy.train()
    trl = TRL(first, tokenizer, work)
    batch = trl.rollout()
    groups = as_groups(batch, trl.prompts, work.group_size)
    tried = best_micro_batch(trl, lambda: trl.train(batch), tries)
    sides = {"ours": lambda: ours.train(groups), "trl": lambda: trl.train(batch)}
    result = compare("train", model, workload, work, sides, rounds)
    result.packed = ours.policy.packed
    result.trl_tried, result.trl_micro_batch = tried, min(tried, key=lambda rows: tried[rows])
    return result
