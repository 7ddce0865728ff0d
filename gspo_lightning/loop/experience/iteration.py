"""Iteration of reinforcement learning: prompts in, mini-batches with advantages out. :meth:`run` has the steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gspo_lightning.core.distributed import fail_together, rank_and_world
from gspo_lightning.core.types import Rollout
from gspo_lightning.loop.advantages.assign import assign
from gspo_lightning.loop.experience.chosen import chosen_rows
from gspo_lightning.loop.experience.collect import Experience, collect, measure_rewards
from gspo_lightning.loop.experience.sampling import Sampling
from gspo_lightning.loop.experience.settings import ExperienceSettings
from gspo_lightning.loop.experience.training_state import TrainingState, marks_rows
from gspo_lightning.loop.metrics.rollouts import measure_staleness
from gspo_lightning.loop.metrics.sources import measure_sources
from gspo_lightning.policy.packing.deal import deal_stream
from gspo_lightning.policy.packing.memory import MemoryLimit
from gspo_lightning.policy.packing.rollout_batch import RolloutBatch
from gspo_lightning.policy.strategies.sharding import gathered
from gspo_lightning.rollouts.recording.records import write_rollouts


@dataclass(slots=True)
class Iteration:
    """The work between two rounds of updates, for ``gspo fit`` and :class:`gspo_lightning.GSPOTrainer`.

    Args:
        sampling: samples and scores the groups of each iteration.
        budget: tokens of a micro-batch that memory has room for now.
        folder: folder for recorded rollouts.
        distributions: keep the measurements of single responses.
        accuracy_reward: reward that decides which responses are correct, for a curriculum and ``positive_nll_coef``.
        memory: splits a critic's update that does not fit into smaller pieces; None: out of memory is an error.
    """

    sampling: Sampling
    budget: Callable[[], int]
    folder: Path | None = None
    distributions: bool = True
    accuracy_reward: str = ""
    memory: MemoryLimit | None = None
    _ready: float | None = field(default=None, init=False)
    """Time at which the last iteration had its rollouts."""

    @property
    def state(self) -> TrainingState:
        """Policy, old policy, and the state of training."""
        return self.sampling.state

    @property
    def settings(self) -> ExperienceSettings:
        """Amount of sampling, its parameters, and how mini-batches are made."""
        return self.sampling.settings

    @settings.setter
    def settings(self, settings: ExperienceSettings) -> None:
        self.sampling.settings = settings

    def run(self, number: int) -> Experience:
        """Run everything between the updates of two iterations; all ranks together.

        Raises:
            UserError: no response has a reward, or the rollouts lack what training needs.
            InfrastructureError: the rollout source, or the rewards, failed for good.
        """
        state = self.state
        settings = self.settings
        sampling = self.sampling
        state.old_policy.refresh(state.policy, number)
        begun = time.perf_counter()
        with (
            fail_together(),
            gathered(state.old_policy.sampling_policy(state.policy), sampling.weights_on) as sampler,
        ):
            sampled = sampling.sample(number, sampler)
            self._record(number, sampled.every)
            sampling.sleep()
        waited = self._wait_share(begun, time.perf_counter())
        batch = self._cut(number, sampled.groups)
        metrics = measure_rewards(batch.rollouts, number, state.device, sampled.seconds["time/rollout_s"])
        metrics |= sampled.seconds | self._staleness(batch) | {"time/rollout_wait_share": waited}
        with state.forward_context():
            self._penalise(batch)
            metrics |= self._advantages(batch)  # before log-probabilities: marked rows have a layout of their own
            self._old_logprobs(number, batch)
            self._frozen_logprobs(batch)
            if settings.estimator.per_token and state.critic is not None:
                metrics |= state.critic.learn(batch, lr_factor=state.lr_factor, memory=self.memory)
        metrics |= sampling.measured()
        experience = collect(batch, metrics, device=state.device, distributions=self.distributions)
        if rank_and_world()[0] == 0:
            experience.recorded = chosen_rows(batch, settings.record_tokens, number, state.version)
        sampling.observe(number, sampled.every, self.accuracy_reward)  # last: an iteration that fails is not observed
        return experience

    def _wait_share(self, begun: float, now: float) -> float:
        """Return the share of the time since the last rollouts in which training waited for these; 1 at first."""
        last_ready = begun if self._ready is None else self._ready
        self._ready = now
        return (now - begun) / max(now - last_ready, 1e-9)

    def _record(self, number: int, sampled: Sequence[Rollout]) -> None:
        if self.settings.record_rollouts and self.folder is not None:
            write_rollouts(self.folder, number, sampled, self.settings.sampling(self.state.policy.eos_token_ids))

    def _cut(self, number: int, groups: list[list[Rollout]]) -> RolloutBatch:
        """Deal the rollouts to mini-batches, and cut those into micro-batches."""
        state = self.state
        settings = self.settings
        sampled_ahead = self.sampling.prefetcher is not None
        return RolloutBatch.of(
            groups,
            mini_batches=settings.minibatches_per_rollout,
            max_tokens=self.budget(),
            packed=state.policy.packed,
            shares_prefix=state.policy.shares_prefix,
            deal=settings.dealing,
            base=deal_stream(settings.seed, number),
            iteration=number,
            version=None if sampled_ahead else state.version,
            sources=self.sampling.prompts.sources,
            accuracy_reward=self.accuracy_reward,
            weigh=settings.rows,
        )

    def _staleness(self, batch: RolloutBatch) -> dict[str, float]:
        """Return the age of the weights that sampled, if they may differ from the current ones."""
        if self.sampling.same_weights:
            return {}
        return measure_staleness(batch.rollouts, self.state.version, self.state.device)

    def _penalise(self, batch: RolloutBatch) -> None:
        """Subtract the KL to the reference from the rewards, if ``data.kl_in_reward`` is set."""
        state = self.state
        settings = self.settings
        if settings.kl_in_reward and state.reference is not None:
            state.reference.penalise(
                batch.rollouts,
                state.old_policy.sampling_policy(state.policy),
                settings.kl_in_reward,
                settings.temperature,
                self.budget(),
                state.device,
            )

    def _old_logprobs(self, number: int, batch: RolloutBatch) -> None:
        """Fill in the old log-probabilities that must be computed now."""
        state = self.state
        old_policy = state.old_policy
        temperature = self.settings.temperature
        partial = self.sampling.partial
        if partial is not None and not state.old_logprobs.from_source(batch.mini_batches):
            # whole weights, as ranks hold different numbers of responses and shards need equal calls on all of them
            with gathered(old_policy.sampling_policy(state.policy)) as sampler:
                partial.recompute(sampler, temperature, state.version, self.budget())
        # in a single pass the snapshot still equals the policy at the first mini-batch, so training computes them
        first_is_free = self.settings.epochs_per_rollout == 1 and old_policy.due(number)
        batch.mini_batches = state.old_logprobs.fill(
            old_policy, state.policy, batch.mini_batches, temperature, first_is_free=first_is_free
        )

    def _frozen_logprobs(self, batch: RolloutBatch) -> None:
        """Fill in the log-probabilities of the reference and the teacher, if there are any."""
        for frozen in (self.state.reference, self.state.teacher):
            if frozen is not None:
                batch.mini_batches = frozen.fill(batch.mini_batches, self.settings.temperature, self.state.device)

    def _advantages(self, batch: RolloutBatch) -> dict[str, float]:
        """Assign the advantage of every rollout or token, from values that a critic estimates if there is one."""
        state = self.state
        settings = self.settings
        if settings.estimator.per_token and state.critic is not None:
            state.critic.judge(batch)
        dead, metrics = assign(batch.groups, settings.estimator, settings.shaping, state.device)
        batch.take_advantages(mark=marks_rows(state))
        sources = self.sampling.prompts.sources
        if sources:
            metrics |= measure_sources(batch.groups, sources, dead, state.device)
        return metrics
