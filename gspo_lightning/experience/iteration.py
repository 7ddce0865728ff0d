"""Iteration of reinforcement learning: prompts in, mini-batches with advantages out. :meth:`run` has the steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import torch

from gspo_lightning.advantages.gae import GAE
from gspo_lightning.advantages.per_token import assign_token_advantages
from gspo_lightning.advantages.shaping import assign_advantages, is_dead, mask_truncated
from gspo_lightning.critic.value_model import Rows
from gspo_lightning.distributed import all_gather_objects, fail_together, gather_rows, rank_and_world
from gspo_lightning.experience.collect import Experience, collect, measure_rewards
from gspo_lightning.experience.learner import Learner
from gspo_lightning.experience.resample import resample
from gspo_lightning.experience.respond import Groups, Responder
from gspo_lightning.experience.settings import ExperienceSettings
from gspo_lightning.metrics.rollouts import measure_staleness
from gspo_lightning.metrics.sources import measure_sources
from gspo_lightning.packing.batches import batches_of, cut_groups, with_advantages
from gspo_lightning.packing.memory import MemoryLimit
from gspo_lightning.policy.policy import Policy
from gspo_lightning.randomness import Purpose, stream
from gspo_lightning.rollouts.partial import PartialRollouts
from gspo_lightning.rollouts.prefetcher import Job, RolloutPrefetcher
from gspo_lightning.rollouts.recording.records import record, recording_file, write_records
from gspo_lightning.strategies.sharding import gathered
from gspo_lightning.types import MiniBatch, Prompt, Rollout

__all__ = ["Iteration", "Prompts", "Sampled"]

Sampled = tuple[Groups, dict[str, float]]
"""Scored groups, and the seconds of sampling and scoring."""


class Prompts(Protocol):
    """Prompts of each iteration on this rank (:class:`gspo_lightning.prompts.order.PromptOrder`)."""

    def share(self, iteration: int) -> list[Prompt]:
        """Return the prompts to train on."""

    def spare(self, iteration: int, limit: int) -> list[Prompt]:
        """Return other prompts, up to ``limit`` of each source, to replace dead groups."""

    def observe(self, iteration: int, rates: Mapping[int, float]) -> None:
        """Report results of an iteration's sampled groups, by prompt id; called only if :attr:`learns`."""

    @property
    def sources(self) -> tuple[str, ...]:
        """Names of the sources of a mixture."""

    @property
    def learns(self) -> bool:
        """True if the choice of prompts depends on observed results."""


@dataclass(slots=True)
class Iteration:
    """The work between two rounds of updates, for ``gspo fit`` and :class:`gspo_lightning.GSPOTrainer`.

    Args:
        learner: policy, old policy, and the state of training.
        settings: amount of sampling, its parameters, and how mini-batches are made.
        prompts: the prompts of each iteration.
        respond: samples and scores.
        budget: tokens of a micro-batch that memory has room for now.
        partial: cuts responses that continue in the next iteration; None waits for all.
        prefetcher: samples ahead of training; None alternates between sampling and training.
        folder: folder for recorded rollouts.
        distributions: keep the measurements of single responses.
        accuracy_reward: reward that decides which responses are correct, for a curriculum and ``positive_nll_coef``.
        memory: splits a critic's update that does not fit into smaller pieces; None: out of memory is an error.
    """

    learner: Learner
    settings: ExperienceSettings
    prompts: Prompts
    respond: Responder
    budget: Callable[[], int]
    partial: PartialRollouts | None = None
    prefetcher: RolloutPrefetcher[Sampled] | None = None
    folder: Path | None = None
    distributions: bool = True
    accuracy_reward: str = ""
    memory: MemoryLimit | None = None
    _newest: tuple[int, Policy] | None = field(default=None, init=False)

    def run(self, number: int) -> Experience:
        """Run everything between the updates of two iterations; all ranks together.

        Raises:
            UserError: no response has a reward, or the rollouts lack what training needs.
            InfrastructureError: the rollout source, or the rewards, failed for good.
        """
        learner = self.learner
        learner.old_policy.refresh(learner.policy, number)
        source = self.respond.source
        with (
            fail_together(),
            gathered(learner.old_policy.sampling_policy(learner.policy), source.weights_on) as sampler,
        ):
            groups, seconds = self._sample(number, sampler)
            first = [r for g in groups for r in g]
            fresh, more = self._resample(number, groups, sampler)
            self._record(number, first + fresh)
            if self.prefetcher is None:
                source.rest()
        metrics = measure_rewards(groups, number, learner.device) | _added(seconds, more) | self._staleness(groups)
        rows = self._cut(number, groups)
        batches = batches_of(
            rows, iteration=number, version=learner.version if self.prefetcher is None else None,
            sources=self.prompts.sources, accuracy_reward=self.accuracy_reward,
        )  # fmt: skip
        with learner.forward_context():
            self._penalise(groups)
            batches = self._old_logprobs(number, batches)
            batches = self._frozen_logprobs(batches)
            metrics |= self._advantages(groups, batches, rows)
        metrics |= self._by_source(groups) | self._of_rollouts()
        batches = with_advantages(batches, rows)
        experience = collect(groups, batches, metrics, device=learner.device, distributions=self.distributions)
        self._observe(number, first + fresh)  # last, so an iteration that fails earlier is not observed
        return experience

    def _sample(self, number: int, sampler: Policy) -> Sampled:
        """Return scored groups for this rank's prompts: sampled now, or while the last iteration was trained on."""
        if self.prefetcher is not None:
            self._renew(number, self.prefetcher)
            groups, seconds = self.prefetcher.take(number, self.learner.iterations, self._job)
        else:
            prompts = self.prompts.share(number) if self.partial is None else ()  # partial rollouts have their own
            groups, seconds = self._ask(number, prompts, sampler)
        mask_truncated([r for g in groups for r in g], self.settings.shaping)
        return groups, seconds

    def _ask(
        self,
        number: int,
        prompts: Sequence[Prompt],
        sampler: Policy,
        version: int | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Sampled:
        sampling = self.settings.sampling(sampler.eos_token_ids)
        version = self.learner.version if version is None else version
        return self.respond(sampler, prompts, sampling, iteration=number, version=version, progress=progress)

    def _job(self, number: int) -> Job[Sampled]:
        """Return a job that samples a future iteration with a copy of the current weights."""
        policy, version = self._copy(), self.learner.version
        prompts = self.prompts.share(number)

        def job(check: Callable[[], None]) -> Sampled:
            return self._ask(number, prompts, policy, version, lambda *_: check())

        return job

    def _renew(self, number: int, prefetcher: RolloutPrefetcher[Sampled]) -> None:
        """Switch rollouts in flight for this iteration to the newest weights, if the source can."""
        source = self.respond.source
        if source.renews and any(all_gather_objects(prefetcher.at_work(number))):
            with fail_together():
                source.renew(self._copy(), self.learner.version)

    def _copy(self) -> Policy:
        """Return a frozen copy of the current weights; one shared copy if several rollouts may need it."""
        learner = self.learner
        if not self.respond.source.renews:
            return learner.policy.frozen_copy().eval()
        if self._newest is None or self._newest[0] != learner.version:
            self._newest = learner.version, learner.policy.frozen_copy().eval()
        return self._newest[1]

    def _resample(self, number: int, groups: Groups, sampler: Policy) -> tuple[list[Rollout], dict[str, float]]:
        """Replace dead groups; return all responses sampled for that, and metrics."""
        if not self.settings.resample_dead_groups:
            return [], {}
        sampled: list[Rollout] = []

        def sample(prompts: Sequence[Prompt]) -> Sampled:
            fresh, seconds = self._ask(number, prompts, sampler)
            sampled.extend(r for g in fresh for r in g)
            return fresh, seconds

        limit = self.settings.resample_dead_groups
        spare, several = self.prompts.spare(number, limit), bool(self.prompts.sources)

        def source(prompt: Prompt) -> object:
            return prompt.columns.get("source") if several else None

        return sampled, resample(groups, sample, spare, self.settings.shaping, limit, source)

    def _record(self, number: int, sampled: Sequence[Rollout]) -> None:
        if self.settings.record_rollouts and self.folder is not None:
            sampling = self.settings.sampling(self.learner.policy.eos_token_ids)
            file = recording_file(self.folder, number, rank_and_world()[0])
            write_records(file, [record(rollout, sampling, number) for rollout in sampled])

    def _by_source(self, groups: Groups) -> dict[str, float]:
        names, shaping = self.prompts.sources, self.settings.shaping
        dead = (lambda group: is_dead(group, shaping)) if self.settings.dead_groups else None
        return measure_sources(groups, names, dead, self.learner.device) if names else {}

    def _of_rollouts(self) -> dict[str, float]:
        """Return the rollout source's own measurements, the smallest over the ranks."""
        found = self.respond.source.measured()
        if not found:
            return {}
        values = torch.tensor(list(found.values()), dtype=torch.float64, device=self.learner.device)
        return dict(zip(found, gather_rows(values).amin(0).tolist(), strict=True))

    def _observe(self, number: int, sampled: Sequence[Rollout]) -> None:
        """Report the results of all sampled groups to the prompt order, including other ranks' and dead groups."""
        if not self.prompts.learns:
            return
        parts: dict[int, list[float]] = {}
        for rollout in sampled:
            known, value = parts.setdefault(rollout.prompt.id, []), rollout.verdict(self.accuracy_reward)
            known += [min(max(value, 0.0), 1.0)] if value is not None else []
        rates = {id_: sum(known) / len(known) if known else math.nan for id_, known in parts.items()}
        self.prompts.observe(number, {id_: rate for own in all_gather_objects(rates) for id_, rate in own.items()})

    def _staleness(self, groups: Groups) -> dict[str, float]:
        """Return the age of the weights that sampled, if they may differ from the current ones."""
        if self.partial is None and self.prefetcher is None:
            return {}
        return measure_staleness([r for g in groups for r in g], self.learner.version, self.learner.device)

    def _cut(self, number: int, groups: Groups) -> list[list[list[Rollout]]]:
        return cut_groups(
            groups,
            mini_batches=self.settings.minibatches_per_rollout,
            max_tokens=self.budget(),
            packed=self.learner.policy.packed,
            deal=self.settings.deal,
            base=stream(self.settings.seed, Purpose.DEAL, number),
        )

    def _penalise(self, groups: Groups) -> None:
        """Subtract the KL to the reference from the rewards, if ``data.kl_in_reward`` is set."""
        learner, coef = self.learner, self.settings.kl_in_reward
        if coef and learner.reference is not None:
            sampler = learner.old_policy.sampling_policy(learner.policy)
            rollouts = [r for g in groups for r in g]
            learner.reference.penalise(
                rollouts, sampler, coef, self.settings.temperature, self.budget(), learner.device
            )

    def _old_logprobs(self, number: int, batches: Sequence[MiniBatch]) -> list[MiniBatch]:
        """Fill in the old log-probabilities that must be computed now."""
        learner, old, temperature = self.learner, self.learner.old_policy, self.settings.temperature
        if self.partial is not None and not learner.old_logprobs.from_source(batches):
            with gathered(old.sampling_policy(learner.policy)) as plain:  # ranks hold different numbers of responses
                self.partial.recompute(plain, temperature, learner.version, self.budget())
        once = self.settings.epochs_per_rollout == 1 and old.due(number)
        return learner.old_logprobs.fill(old, learner.policy, batches, temperature, first_is_free=once)

    def _frozen_logprobs(self, batches: list[MiniBatch]) -> list[MiniBatch]:
        """Fill in the log-probabilities of the reference and the teacher, if there are any."""
        for frozen in (self.learner.reference, self.learner.teacher):
            if frozen is not None:
                batches = frozen.fill(batches, self.settings.temperature, self.learner.device)
        return batches

    def _advantages(self, groups: Groups, batches: Sequence[MiniBatch], rows: Rows) -> dict[str, float]:
        """Assign the advantage of every response or token; a critic first estimates values, then learns."""
        learner, settings = self.learner, self.settings
        if not isinstance(settings.advantages, GAE) or learner.critic is None:
            dead = assign_advantages(groups, settings.advantages, settings.shaping, learner.device)
            return {"reward/dead_groups": dead} if settings.dead_groups else {}
        learner.critic.judge(batches, rows)
        found = assign_token_advantages(groups, settings.advantages, settings.shaping, learner.device)
        return found | learner.critic.learn(batches, rows, lr_factor=learner.lr_factor, memory=self.memory)


def _added(seconds: dict[str, float], more: dict[str, float]) -> dict[str, float]:
    return {name: seconds.get(name, 0.0) + more.get(name, 0.0) for name in {**seconds, **more}}
