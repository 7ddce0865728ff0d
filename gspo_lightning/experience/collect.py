"""One RL iteration's data: prompts -> rollouts -> rewards -> advantages -> mini-batches, and how long each took."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from gspo_lightning.advantages.shaping import Shaping, assign_advantages, is_dead, mask_truncated
from gspo_lightning.advantages.within_groups import Advantages
from gspo_lightning.distributed import all_gathered, all_sum, rank_and_world
from gspo_lightning.errors import UserError, counted
from gspo_lightning.metrics.responses import Distributions, distribution_scalars, extremes, measure_distributions
from gspo_lightning.metrics.rollouts import measure_rollouts
from gspo_lightning.packing.batches import make_mini_batches
from gspo_lightning.policy.policy import Policy
from gspo_lightning.rewards import RewardRunner, Sample, SampleScore
from gspo_lightning.rewards.workers.runner import Pending
from gspo_lightning.rollouts import Draws
from gspo_lightning.rollouts.base import Generator, Progress
from gspo_lightning.rollouts.contract import check_group, check_groups
from gspo_lightning.rollouts.partial import PartialRollouts
from gspo_lightning.rollouts.recording.records import of_conversation
from gspo_lightning.rollouts.retrying import Patient
from gspo_lightning.types import MiniBatch, Prompt, Rollout, SamplingParams

__all__ = ["Experience", "Scorer", "collect", "deal", "resample", "respond", "row_hash"]

Groups = list[list[Rollout]]


class Scorer(Protocol):
    """What gives rewards: worker processes (``RewardRunner``), or the caller of a library."""

    def score(self, samples: Sequence[Sample]) -> Sequence[SampleScore]:
        """One verdict per sample, in order."""


@dataclass(slots=True)
class Experience:
    """What one rollout batch leaves behind: mini-batches to train on, metrics of the iteration, examples to look at."""

    mini_batches: list[MiniBatch]
    metrics: dict[str, float]
    examples: list[dict[str, Any]] = field(default_factory=list)
    rewards: dict[str, list[Any]] = field(default_factory=dict)
    """``<prompt>/<sample>`` -> hash of its token ids, reward or None; for a dump of an update that went wrong."""
    distributions: Distributions = field(default_factory=dict)
    """One value per response of all ranks: length, reward, advantage ... (histograms)."""

    def state_dict(self) -> dict[str, Any]:
        """Tensors and primitives only."""
        return {
            "mini_batches": [b.state_dict() for b in self.mini_batches],
            "metrics": dict(self.metrics),
            "examples": list(self.examples),
            "rewards": dict(self.rewards),
            "distributions": dict(self.distributions),
        }

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any]) -> Experience:
        """The inverse of :meth:`state_dict`."""
        return cls(
            [MiniBatch.from_state_dict(b) for b in state["mini_batches"]],
            dict(state["metrics"]),
            list(state["examples"]),
            dict(state.get("rewards", {})),
            dict(state.get("distributions", {})),
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
    source: Generator,
    policy: Policy,
    prompts: Sequence[Prompt],
    rewards: Scorer,
    *,
    group_size: int,
    sampling: SamplingParams,
    draws: Draws,
    version: int,
    context: Callable[[], AbstractContextManager[Any]] = nullcontext,
    progress: Progress | None = None,
) -> tuple[Groups, dict[str, float]]:
    """Groups of scored rollouts, and the seconds that generation took and scoring went on after it.

    Workers score a group while others are still being generated, where the source says that it is complete.

    Raises:
        PluginError: the source does not keep its contract (:mod:`gspo_lightning.rollouts.contract`).

    ``context`` is entered once around the whole rollout: in one autocast context weights are cast once.
    """
    start = time.perf_counter()
    training = policy.training
    policy.eval()  # key-value caches and gradient checkpointing exclude each other in train mode
    begun: list[tuple[Sequence[Rollout], Pending]] = []
    asked = _answering(source)
    if isinstance(rewards, RewardRunner):
        runner = rewards

        def submit(group: Sequence[Rollout]) -> None:
            known = _known(group if asked is None else check_group(asked, group, group_size, sampling))
            begun.append((known, runner.submit([_sample(r) for r in known])))

        source.on_group = submit
    try:
        with context():
            source.sync_weights(policy, version)
            groups = source.generate(
                policy,
                prompts,
                group_size=group_size,
                sampling=sampling,
                draws=draws,
                version=version,
                progress=progress,
            )
            if asked is not None:
                groups = check_groups(asked, groups, prompts, group_size, sampling)
    finally:
        source.on_group = None
        policy.train(training)
    generated = time.perf_counter()
    if isinstance(rewards, RewardRunner):
        early = {id(r) for group, _ in begun for r in group}
        late = [r for r in _known(r for g in groups for r in g) if id(r) not in early]
        scored = [r for group, _ in begun for r in group] + late
        scores = rewards.gather([pending for _, pending in begun] + [rewards.submit([_sample(r) for r in late])])
    else:
        scored = _known(r for g in groups for r in g)
        scores = list(rewards.score([_sample(r) for r in scored]))
    for rollout, score in zip(scored, scores, strict=True):
        _fill(rollout, score)
    return groups, {"time/rollout_s": generated - start, "time/reward_s": time.perf_counter() - generated}


def _answering(source: Generator) -> object | None:
    """The source that keeps the contract of groups; None for partial rollouts, which ask for pieces of their own."""
    answering = source.source if isinstance(source, Patient) else source
    return None if isinstance(answering, PartialRollouts) else answering


def _sample(rollout: Rollout) -> Sample:
    return Sample(
        id=f"{rollout.prompt.id}/{rollout.sample}",
        prompt=rollout.prompt.text,
        completion=rollout.text,
        completion_ids=tuple(rollout.own_ids.tolist()),
        columns={**rollout.prompt.columns, **of_conversation(rollout)},
        truncated=rollout.truncated,
    )


def _known(rollouts: Iterable[Rollout]) -> list[Rollout]:
    """What can be scored: not a conversation whose environment failed, nor what brought its verdict with it."""
    return [r for r in rollouts if not r.lost and not r.reward_statuses]


def _fill(rollout: Rollout, score: SampleScore) -> None:
    rollout.reward = score.reward
    rollout.reward_parts = {name: part.reward for name, part in score.parts.items()}
    rollout.reward_statuses = {name: str(part.status) for name, part in score.parts.items()}
    rollout.missing = "; ".join(f"{name}: {p.detail}" for name, p in score.parts.items() if p.reward is None)


def resample(
    groups: Groups,
    seconds: dict[str, float],
    sample: Callable[[Sequence[int]], tuple[Groups, dict[str, float]]],
    spare: Sequence[int],
    shaping: Shaping,
) -> None:
    """Put groups that can teach something in the place of dead ones, in place, until ``spare`` prompts are used up.

    DAPO's dynamic sampling (arXiv 2503.14476) with a budget: an iteration trains on as many groups as ever, and a dead
    group for which no better one was found stays.

    Args:
        groups: this rank's scored groups.
        seconds: times, added to; also gets ``reward/resampled_groups``, the groups replaced.
        sample: scored groups for some prompts.
        spare: prompts that may be sampled.
        shaping: decides what is dead.
    """
    left, replaced = list(spare), 0
    while left and (dead := [i for i, g in enumerate(groups) if is_dead(g, shaping)]):
        now, left = left[: len(dead)], left[len(dead) :]
        fresh, spent = sample(now)
        mask_truncated([r for g in fresh for r in g], shaping)
        for name, value in spent.items():
            seconds[name] += value
        alive = [g for g in fresh if not is_dead(g, shaping)]
        for i, group in zip(dead, alive, strict=False):  # fewer may be alive than are needed
            groups[i] = group
        replaced += len(alive)
    seconds["reward/resampled_groups"] = float(replaced)


def collect(
    groups: Groups,
    seconds: Mapping[str, float],
    *,
    advantages: Advantages,
    shaping: Shaping,
    mini_batches: int,
    max_tokens: int,
    iteration: int,
    device: torch.device,
    packed: bool = False,
    version: int | None = None,
    examples: int = 8,
    distributions: bool = True,
) -> Experience:
    """Scored groups of this rank, in the order they were dealt, to an :class:`Experience`.

    ``distributions`` also keeps what was measured of each response.

    Raises:
        UserError: no response of any rank has a reward.
    """
    rollouts = [r for g in groups for r in g]
    dead = assign_advantages(groups, advantages, shaping, device)
    metrics = measure_rollouts(rollouts, device) | dict(seconds)
    if metrics["reward/missing"] == 1:
        reasons = counted(all_gathered(r.lost or r.missing for r in rollouts))
        raise UserError(
            "data.rewards",
            f"no response of iteration {iteration} has a reward, so there is nothing to learn from: {reasons}",
            fix="correct the reward or what it depends on, then go on with --ckpt_path last",
        )
    spread = measure_distributions(rollouts, device) if distributions else {}
    metrics |= distribution_scalars(spread) if spread else {}
    metrics["reward/dead_groups"] = dead
    metrics["data/iteration"] = float(iteration)
    generated = sum(r.length for r in rollouts)
    tokens = float(all_sum(torch.tensor(generated, dtype=torch.float64, device=device)))
    metrics["throughput/generated_tokens_per_s"] = tokens / max(seconds["time/rollout_s"], 1e-9)
    batches = make_mini_batches(
        groups, mini_batches=mini_batches, max_tokens=max_tokens, iteration=iteration, packed=packed, version=version
    )
    shown = [_example(r) for g in groups for r in g[:2]][:examples]
    if distributions:
        shown += [_example(r, name) for name, r in extremes(rollouts).items()]
    rewards = {f"{r.prompt.id}/{r.sample}": [row_hash(r.prompt.token_ids, r.token_ids), r.reward] for r in rollouts}
    return Experience(batches, metrics, shown, rewards, spread)


def row_hash(prompt: Sequence[int], response: torch.Tensor) -> str:
    """A short name for a row by its token ids, the same in every process."""
    ids = torch.cat([torch.tensor(prompt, dtype=torch.int64), response.to("cpu", torch.int64)])
    return hashlib.blake2b(ids.numpy().tobytes(), digest_size=8).hexdigest()


def _example(rollout: Rollout, shown_as: str = "sample") -> dict[str, Any]:
    return {
        "shown_as": shown_as,
        "prompt": rollout.prompt.text,
        "completion": rollout.transcript,
        "answer": str(rollout.prompt.columns.get("answer", "")),
        "reward": rollout.reward,
        "advantage": rollout.advantage,
        "tokens": rollout.length,
        "finish": str(rollout.finish_reason),
    }
