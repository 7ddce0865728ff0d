"""Scored groups from prompts: workers score one group while the rollout source generates the next."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

from transformers import PreTrainedTokenizerBase

from gspo_lightning.core.randomness import Purpose
from gspo_lightning.core.thinking import unfinished_thought
from gspo_lightning.core.tolerance import SINGLE, equal
from gspo_lightning.core.types import Prompt, Rollout, SamplingParams
from gspo_lightning.loop.experience.partial import PartialRollouts
from gspo_lightning.loop.experience.retrying import RetryingSource
from gspo_lightning.loop.experience.steps import token_steps
from gspo_lightning.loop.experience.training_state import TrainingState
from gspo_lightning.policy.kernels.thread_state import on_device
from gspo_lightning.policy.policy import Policy
from gspo_lightning.rewards import RewardRunner, Sample, SampleScore, ScoreStatus
from gspo_lightning.rewards.by_record import Judges
from gspo_lightning.rewards.workers.runner import Pending
from gspo_lightning.rollouts import Draws
from gspo_lightning.rollouts.contract import check_group, check_groups
from gspo_lightning.rollouts.recording.records import of_conversation
from gspo_lightning.rollouts.source import Generator, Progress

Groups = list[list[Rollout]]
"""P groups of G responses each."""


def total_steps(state: TrainingState, updates: int) -> int:
    """Return the optimizer steps of a run with ``updates`` per iteration; -1 if the run has no end."""
    iterations = state.iterations
    return -1 if iterations is None else iterations * updates


class Scorer(Protocol):
    """Source of rewards: worker processes (``RewardRunner``), or the caller of a library."""

    def score(self, samples: Sequence[Sample]) -> Sequence[SampleScore]:
        """Return one score per sample, in order."""


class Unrewarded:
    """No reward, for distillation alone: every response scores 0, so none is better than another."""

    def score(self, samples: Sequence[Sample]) -> Sequence[SampleScore]:
        """Score every sample 0."""
        return [SampleScore(0.0, {}) for _ in samples]


@dataclass(slots=True)
class GenerateAndScore:
    """A rollout source and the scorer of its responses, called one at a time.

    Args:
        source: generates responses.
        rewards: score the responses.
        group_size: responses per prompt.
        seed: seed of the run.
        purpose: purpose of the draws: an evaluation draws other numbers than training in the same iteration.
        context: entered once around each rollout (autocast).
        lock: shared by all users of the source.
        total_steps: returns the optimizer steps of the run, -1 if unknown.
    """

    source: Generator
    rewards: Scorer
    group_size: int
    seed: int
    purpose: Purpose
    context: Callable[[], AbstractContextManager[Any]] = nullcontext
    lock: threading.Lock = field(default_factory=threading.Lock)
    total_steps: Callable[[], int] = lambda: -1

    def __call__(
        self,
        policy: Policy,
        prompts: Sequence[Prompt],
        sampling: SamplingParams,
        *,
        iteration: int,
        version: int,
        progress: Progress | None = None,
        sync: bool = True,
    ) -> tuple[Groups, dict[str, float]]:
        """Call :func:`generate_and_score` with the draws of an iteration."""
        with self.lock:
            return generate_and_score(
                self.source,
                policy,
                prompts,
                self.rewards,
                group_size=self.group_size,
                sampling=sampling,
                draws=Draws.of(self.seed, self.purpose, iteration),
                version=version,
                context=self.context,
                progress=progress,
                total_steps=self.total_steps(),
                sync=sync,
            )


def generate_and_score(
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
    total_steps: int = -1,
    sync: bool = True,
) -> tuple[Groups, dict[str, float]]:
    """Return groups of scored rollouts, and the seconds of generation and of the scoring that followed it.

    If the source reports complete groups, workers score one while others are still being generated. ``context`` is
    entered once around the whole rollout: in one autocast context weights are cast once. The thread, which may be new,
    works on the policy's device. ``sync`` is false if the source has been sent these weights already.

    Raises:
        PluginError: the source breaks its contract (:mod:`gspo_lightning.rollouts.contract`).
    """
    start = time.perf_counter()
    training = policy.training
    policy.eval()  # key-value caches and gradient checkpointing exclude each other in train mode
    in_flight: list[tuple[Sequence[Rollout], Pending]] = []
    answering = _answering(source)
    if isinstance(rewards, RewardRunner):
        runner = rewards

        def submit(group: Sequence[Rollout]) -> None:
            if answering is not None:
                group = check_group(answering, group, group_size, sampling)
            unscored = _unscored(group, policy.tokenizer)
            samples = [_sample(rollout, total_steps, runner.judges) for rollout in unscored]
            in_flight.append((unscored, runner.submit(samples)))

        source.on_group = submit
    try:
        with on_device(policy.device), context():
            if sync:
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
            if answering is not None:
                groups = check_groups(answering, groups, prompts, group_size, sampling)
    finally:
        source.on_group = None
        policy.train(training)
    generated = time.perf_counter()
    _judge(groups, in_flight, rewards, total_steps, policy.tokenizer)
    return groups, {"time/rollout_s": generated - start, "time/reward_s": time.perf_counter() - generated}


def _judge(
    groups: Groups,
    in_flight: Sequence[tuple[Sequence[Rollout], Pending]],
    rewards: Scorer,
    total_steps: int,
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    """Wait for the scores in flight, request the others, and store all of them."""
    unscored = _unscored([rollout for group in groups for rollout in group], tokenizer)
    if isinstance(rewards, RewardRunner):
        early = [rollout for group, _ in in_flight for rollout in group]
        early_ids = {id(rollout) for rollout in early}
        late = [rollout for rollout in unscored if id(rollout) not in early_ids]
        late_pending = rewards.submit([_sample(rollout, total_steps, rewards.judges) for rollout in late])
        scored = early + late
        scores = rewards.gather([*(pending for _, pending in in_flight), late_pending])
    else:
        scored = unscored
        scores = list(rewards.score([_sample(rollout, total_steps) for rollout in scored]))
    score_of = {}
    for rollout, score in zip(scored, scores, strict=True):
        score_of[id(rollout)] = score
        _fill(rollout, score)
        rollout.steps = _steps(rollout, score, tokenizer)
    for group in groups:
        _level(group, [score_of[id(rollout)] for rollout in group if id(rollout) in score_of])


def _steps(
    rollout: Rollout, score: SampleScore, tokenizer: PreTrainedTokenizerBase
) -> dict[str, tuple[tuple[int, float], ...]]:
    """Return the steps of each reward that scored some, with ends counted in tokens."""
    steps_of = {}
    for name, part in score.parts.items():
        steps = token_steps(rollout, part.steps, tokenizer)
        if steps:
            steps_of[name] = steps
    return steps_of


def _level(group: Sequence[Rollout], scores: Sequence[SampleScore]) -> None:
    """Give rewards known in float32 that differ by its rounding only one value: later comparisons are those of float64.

    Args:
        group: rollouts of one prompt.
        scores: of those that were scored now.
    """
    if any(score.single for score in scores):
        levelled = _levelled([rollout.reward for rollout in group])
        for rollout, value in zip(group, levelled, strict=True):
            rollout.reward = value
    single_names = {name for score in scores for name, part in score.parts.items() if part.single}
    for name in single_names:
        having = [rollout for rollout in group if name in rollout.reward_parts]
        levelled = _levelled([rollout.reward_parts[name] for rollout in having])
        for rollout, value in zip(having, levelled, strict=True):
            rollout.reward_parts[name] = value


def _levelled(rewards: Sequence[float | None]) -> Sequence[float | None]:
    present = [reward for reward in rewards if reward is not None]
    if not present or not equal(min(present), max(present), relative=SINGLE):
        return rewards
    return [None if reward is None else present[0] for reward in rewards]


def _answering(source: Generator) -> object | None:
    """Return the source that must keep the contract of groups; None for partial rollouts, which request pieces."""
    answering = source.source if isinstance(source, RetryingSource) else source
    return None if isinstance(answering, PartialRollouts) else answering


def _sample(rollout: Rollout, total_steps: int, judges: Judges | None = None) -> Sample:
    return Sample(
        id=f"{rollout.prompt.id}/{rollout.sample}",
        prompt=rollout.prompt.text,
        completion=rollout.text,
        completion_ids=tuple(rollout.own_ids.tolist()),
        columns={**columns_of(rollout.prompt, judges), **of_conversation(rollout)},
        truncated=rollout.truncated,
        unfinished_thought=rollout.unfinished_thought,
        prompt_messages=rollout.prompt.messages,
        step=rollout.policy_version,
        total_steps=total_steps,
    )


def columns_of(prompt: Prompt, judges: Judges | None) -> Mapping[str, Any]:
    """Return a prompt's columns, with ``images`` (a list of bytes) if a reward uses it and the prompt has pictures."""
    if not prompt.media or judges is None or not judges.reads_images:
        return prompt.columns
    return {**prompt.columns, "images": [picture.data for picture in prompt.media]}


def _unscored(rollouts: Sequence[Rollout], tokenizer: PreTrainedTokenizerBase) -> list[Rollout]:
    """Return the responses that need a score: no failed conversations, and no responses that came with a score.

    All are marked that end inside a thought.
    """
    for rollout in rollouts:
        rollout.unfinished_thought = unfinished_thought(tokenizer, rollout)
    return [r for r in rollouts if not r.lost and not r.reward_statuses]


def _fill(rollout: Rollout, score: SampleScore) -> None:
    rollout.reward = score.reward
    rollout.reward_parts = {name: part.reward for name, part in score.parts.items()}
    rollout.reward_statuses = {name: str(part.status) for name, part in score.parts.items()}
    rollout.reward_agreements = score.agreements
    rollout.reward_logged |= _merge_logged([part.logged for part in score.parts.values()])
    rollout.reward_extra = {name: value for part in score.parts.values() for name, value in part.extra.items()}
    missing = {name: part for name, part in score.parts.items() if part.reward is None}
    failed = {name: part for name, part in missing.items() if part.status is not ScoreStatus.NOT_APPLICABLE}
    rollout.missing = "; ".join(f"{name}: {part.detail}" for name, part in (failed or missing).items())


def _merge_logged(logged: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Merge the logged values of several rewards; the mean if they use the same name."""
    values_of: dict[str, list[float]] = {}
    for values in logged:
        for name, value in values.items():
            values_of.setdefault(name, []).append(value)
    return {name: sum(values) / len(values) for name, values in values_of.items()}
