"""One RL iteration's data: prompts -> rollouts -> rewards -> advantages -> mini-batches, and how long each took."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from gspo_lightning.advantages import Advantages, dead_groups
from gspo_lightning.distributed import all_sum, gather_rows, rank_and_world
from gspo_lightning.packing import make_mini_batches
from gspo_lightning.policy import Policy
from gspo_lightning.rewards import RewardRunner, Sample
from gspo_lightning.rollouts import Draws, RolloutSource
from gspo_lightning.types import MiniBatch, Prompt, Rollout, SamplingParams

__all__ = ["Experience", "assign_advantages", "collect", "deal", "measure_rollouts", "record", "respond"]

Groups = list[list[Rollout]]


@dataclass(slots=True)
class Experience:
    """What one rollout batch leaves behind: mini-batches to train on, metrics of the iteration, examples to look at."""

    mini_batches: list[MiniBatch]
    metrics: dict[str, float]
    examples: list[dict[str, Any]] = field(default_factory=list)

    def state_dict(self) -> dict[str, Any]:
        """Tensors and primitives only."""
        return {
            "mini_batches": [b.state_dict() for b in self.mini_batches],
            "metrics": dict(self.metrics),
            "examples": list(self.examples),
        }

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any]) -> Experience:
        """The inverse of :meth:`state_dict`."""
        return cls(
            [MiniBatch.from_state_dict(b) for b in state["mini_batches"]],
            dict(state["metrics"]),
            list(state["examples"]),
        )


def deal(order: Sequence[int], mini_batches: int) -> list[int]:
    """The part of a global order of groups that this rank samples and trains on.

    Group ``j`` of a global mini-batch goes to rank ``j % world``, so that a mini-batch holds the same groups whatever
    the number of ranks.
    """
    rank, world = rank_and_world()
    size = len(order) // mini_batches
    return [order[m * size + j] for m in range(mini_batches) for j in range(rank, size, world)]


def respond(
    source: RolloutSource,
    policy: Policy,
    prompts: Sequence[Prompt],
    rewards: RewardRunner,
    *,
    group_size: int,
    sampling: SamplingParams,
    draws: Draws,
    version: int,
    context: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> tuple[Groups, dict[str, float]]:
    """Groups of scored rollouts, and the seconds that generation and scoring took.

    ``context`` is entered once around the whole rollout: in one autocast context weights are cast once.
    """
    start = time.perf_counter()
    training = policy.training
    policy.eval()  # key-value caches and gradient checkpointing exclude each other in train mode
    with context():
        groups = source.generate(
            policy, prompts, group_size=group_size, sampling=sampling, draws=draws, version=version
        )
    policy.train(training)
    generated = time.perf_counter()
    score_rollouts([r for g in groups for r in g], rewards)
    return groups, {"time/rollout_s": generated - start, "time/reward_s": time.perf_counter() - generated}


def score_rollouts(rollouts: Sequence[Rollout], rewards: RewardRunner) -> None:
    """Fill ``reward`` and ``reward_parts`` of each rollout in place."""
    samples = [
        Sample(
            id=f"{r.prompt.id}/{r.sample}",
            prompt=r.prompt.text,
            completion=r.text,
            completion_ids=tuple(r.token_ids.tolist()),
            columns=r.prompt.columns,
            truncated=r.truncated,
        )
        for r in rollouts
    ]
    for rollout, score in zip(rollouts, rewards.score(samples), strict=True):
        rollout.reward = score.reward
        rollout.reward_parts = {name: part.reward for name, part in score.parts.items()}


def assign_advantages(groups: Groups, advantages: Advantages, device: torch.device) -> float:
    """Fill ``advantage`` of each rollout in place, with statistics over all ranks; returns the dead-group fraction."""
    rank, world = rank_and_world()
    mine = torch.tensor(
        [float("nan") if r.reward is None else r.reward for g in groups for r in g], dtype=torch.float64, device=device
    )
    rewards = gather_rows(mine).reshape(-1).cpu()
    ids = torch.arange(len(groups) * world).repeat_interleave(len(groups[0]))
    values = advantages(rewards, ids).reshape(world, -1)[rank].tolist()
    for rollout, value in zip((r for g in groups for r in g), values, strict=True):
        rollout.advantage = value
    return float(dead_groups(rewards, ids).double().mean())


def measure_rollouts(groups: Groups, device: torch.device) -> dict[str, float]:
    """Reward and response statistics over all ranks, from sums and counts."""
    rollouts = [r for g in groups for r in g]
    parts = sorted({name for r in rollouts for name in r.reward_parts})
    rows = [[r.reward] + [r.reward_parts.get(p) for p in parts] for r in rollouts]
    sums: list[float] = []
    for column in zip(*rows, strict=True):
        known = [v for v in column if v is not None]
        sums += [sum(known), sum(v * v for v in known), len(known)]
    sums += [
        sum(len(r.token_ids) for r in rollouts),
        sum(not r.truncated for r in rollouts),
        len(rollouts),
    ]
    total = all_sum(torch.tensor(sums, dtype=torch.float64, device=device)).tolist()
    tokens, terminated, count = total[-3:]
    means = {
        "response/length": tokens / count,
        "response/terminated": terminated / count,
        "response/truncated": 1 - terminated / count,
        "reward/missing": 1 - total[2] / count,
    }
    for i, name in enumerate(["mean", *(f"parts/{p}" for p in parts)]):
        value, square, known = total[3 * i : 3 * i + 3]
        means[f"reward/{name}"] = value / max(known, 1)
        if i == 0:
            means["reward/std"] = max(square / max(known, 1) - (value / max(known, 1)) ** 2, 0.0) ** 0.5
    return means


def collect(
    groups: Groups,
    seconds: Mapping[str, float],
    *,
    advantages: Advantages,
    mini_batches: int,
    max_tokens: int,
    iteration: int,
    device: torch.device,
    examples: int = 8,
) -> Experience:
    """Scored groups of this rank, in the order they were dealt, to an :class:`Experience`."""
    dead = assign_advantages(groups, advantages, device)
    metrics = measure_rollouts(groups, device) | dict(seconds)
    metrics["reward/dead_groups"] = dead
    metrics["data/iteration"] = float(iteration)
    generated = sum(len(r.token_ids) for g in groups for r in g)
    tokens = float(all_sum(torch.tensor(generated, dtype=torch.float64, device=device)))
    metrics["throughput/generated_tokens_per_s"] = tokens / max(seconds["time/rollout_s"], 1e-9)
    batches = make_mini_batches(groups, mini_batches=mini_batches, max_tokens=max_tokens, iteration=iteration)
    return Experience(batches, metrics, [_example(r) for g in groups for r in g[:2]][:examples])


def _example(rollout: Rollout) -> dict[str, Any]:
    return {
        "prompt": rollout.prompt.text,
        "completion": rollout.text,
        "answer": str(rollout.prompt.columns.get("answer", "")),
        "reward": rollout.reward,
        "advantage": rollout.advantage,
        "tokens": len(rollout.token_ids),
        "finish": str(rollout.finish_reason),
    }


def record(rollout: Rollout) -> dict[str, Any]:
    """A rollout as plain data: token ids, mask and log-probabilities included, so that it can be trained on again."""
    return {
        "id": f"{rollout.prompt.id}/{rollout.sample}",
        "prompt": rollout.prompt.text,
        "completion": rollout.text,
        **dict(rollout.prompt.columns),
        "prompt_ids": list(rollout.prompt.token_ids),
        "completion_ids": rollout.token_ids.tolist(),
        "response_mask": rollout.response_mask.tolist(),
        "logprobs": None if rollout.logprobs is None else rollout.logprobs.tolist(),
        "finish_reason": str(rollout.finish_reason),
        "policy_version": rollout.policy_version,
        "reward": rollout.reward,
        "reward_parts": rollout.reward_parts,
    }
