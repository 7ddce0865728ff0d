"""Sampling: the scored groups of an iteration, sampled now, ahead of training, or continued from the last iteration."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Protocol

import torch

from gspo_lightning.core.distributed import all_gather_objects, fail_together, gather_rows
from gspo_lightning.core.types import Prompt, Rollout, WeightsOn
from gspo_lightning.loop.advantages.shaping import Shaping, is_dead, mask_truncated
from gspo_lightning.loop.experience.generate_and_score import GenerateAndScore, Groups
from gspo_lightning.loop.experience.partial import PartialRollouts
from gspo_lightning.loop.experience.prefetcher import Job, RolloutPrefetcher
from gspo_lightning.loop.experience.settings import ExperienceSettings
from gspo_lightning.loop.experience.training_state import TrainingState
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.strategies.sharding import gathered, is_sharded
from gspo_lightning.rollouts.source import Generator

Responses = tuple[Groups, dict[str, float]]
"""Scored groups, and the seconds of sampling and scoring."""


class Prompts(Protocol):
    """Prompts of each iteration on this rank (:class:`gspo_lightning.data.prompts.order.PromptOrder`)."""

    def prompts_for_rank(self, iteration: int) -> list[Prompt]:
        """Return the prompts to train on."""

    def replacement_prompts(self, iteration: int, limit: int) -> list[Prompt]:
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
class Sampled:
    """Responses of an iteration on this rank.

    Args:
        groups: P groups to train on.
        every: all responses that were sampled, those of replaced groups included.
        seconds: seconds of sampling and scoring, under their tags, and ``reward/resampled_groups``.
    """

    groups: Groups
    every: list[Rollout]
    seconds: dict[str, float]


@dataclass(slots=True)
class Sampling:
    """Sampling and scoring of each iteration's groups.

    Args:
        state: policy, old policy, and the state of training.
        settings: amount of sampling and its parameters.
        prompts: the prompts of each iteration.
        generate_and_score: samples and scores.
        partial: cuts responses that continue in the next iteration; None waits for all.
        prefetcher: samples ahead of training; None alternates between sampling and training.
    """

    state: TrainingState
    settings: ExperienceSettings
    prompts: Prompts
    generate_and_score: GenerateAndScore
    partial: PartialRollouts | None = None
    prefetcher: RolloutPrefetcher[Responses] | None = None
    _newest: tuple[int, Policy] | None = field(default=None, init=False)

    @property
    def source(self) -> Generator:
        """Rollout source."""
        return self.generate_and_score.source

    @property
    def same_weights(self) -> bool:
        """True if all tokens of an iteration come from the weights that its training starts from."""
        return self.partial is None and self.prefetcher is None

    @property
    def weights_on(self) -> WeightsOn:
        """Ranks that need whole weights in :meth:`sample`; sharded ones are gathered when a job is submitted."""
        ahead = self.prefetcher is not None and is_sharded(self.state.policy)
        return WeightsOn.NO_RANK if ahead else self.source.weights_on

    def sample(self, number: int, sampler: Policy) -> Sampled:
        """Return this rank's scored groups: sampled now, or while the last iteration was trained on.

        Args:
            number: of the iteration.
            sampler: weights to sample from, unless they were taken ahead of training.
        """
        if self.prefetcher is not None:
            self._renew(number, self.prefetcher)
            together = is_sharded(self.state.policy)
            groups, seconds = self.prefetcher.take(number, self.state.iterations, self._job, together=together)
        else:
            # partial rollouts take their prompts from the training order themselves
            prompts = () if self.partial is not None else self.prompts.prompts_for_rank(number)
            groups, seconds = self._generate(number, prompts, sampler)
        sampled = Sampled(groups, [r for g in groups for r in g], seconds)
        if self.settings.resample_dead_groups:
            self._resample(number, sampled, sampler)
        return sampled

    def sleep(self) -> None:
        """Let the source release memory for training, unless it samples meanwhile."""
        if self.prefetcher is None:
            self.source.sleep()

    def observe(self, number: int, sampled: Sequence[Rollout], accuracy_reward: str) -> None:
        """Report the results of all sampled groups to the prompt order, including other ranks' and dead groups."""
        if not self.prompts.learns:
            return
        verdicts: dict[int, list[float]] = {}
        for rollout in sampled:
            prompt_verdicts = verdicts.setdefault(rollout.prompt.id, [])
            verdict = rollout.verdict(accuracy_reward)
            if verdict is not None:
                prompt_verdicts.append(min(max(verdict, 0.0), 1.0))
        rates = {}
        for prompt_id, prompt_verdicts in verdicts.items():
            rates[prompt_id] = sum(prompt_verdicts) / len(prompt_verdicts) if prompt_verdicts else math.nan
        all_rates = {}
        for rank_rates in all_gather_objects(rates):
            all_rates.update(rank_rates)
        self.prompts.observe(number, all_rates)

    def measured(self) -> dict[str, float]:
        """Return the source's own measurements since the last call, the smallest over the ranks."""
        metrics = self.source.measured()
        if not metrics:
            return {}
        values = torch.tensor(list(metrics.values()), dtype=torch.float64, device=self.state.device)
        smallest = gather_rows(values).amin(0)
        return dict(zip(metrics, smallest.tolist(), strict=True))

    def _generate(
        self,
        number: int,
        prompts: Sequence[Prompt],
        sampler: Policy,
        version: int | None = None,
        progress: Callable[[int, int], None] | None = None,
        sync: bool = True,
    ) -> Responses:
        sampling = self.settings.sampling(sampler.eos_token_ids)
        version = self.state.version if version is None else version
        groups, seconds = self.generate_and_score(
            sampler, prompts, sampling, iteration=number, version=version, progress=progress, sync=sync
        )
        mask_truncated((r for g in groups for r in g), self.settings.shaping)
        return groups, seconds

    def _job(self, number: int) -> Job[Responses]:
        """Return a job that samples a future iteration with the current weights: a copy, or sent to servers here."""
        version = self.state.version
        sharded = is_sharded(self.state.policy)
        policy = self._sent() if sharded else self._copy()
        prompts = self.prompts.prompts_for_rank(number)

        def job(check: Callable[[], None]) -> Responses:
            return self._generate(number, prompts, policy, version, lambda *_: check(), sync=not sharded)

        return job

    def _sent(self) -> Policy:
        """Send sharded weights to the source, all ranks together; return the policy, which then has no weights."""
        assert self.prefetcher is not None
        self.prefetcher.settle()  # servers keep their weights until the last request of the job before is answered
        with self._newest_weights() as policy:
            self.source.sync_weights(policy, self.state.version)
        return policy

    @contextmanager
    def _newest_weights(self) -> Iterator[Policy]:
        """Yield the current weights for the source, in its context: gathered from shards, or a copy."""
        weights: AbstractContextManager[Policy]
        if is_sharded(self.state.policy):
            weights = gathered(self.state.policy, self.source.weights_on)
        else:
            weights = nullcontext(self._copy())
        with weights as policy, self.generate_and_score.context():
            yield policy

    def _renew(self, number: int, prefetcher: RolloutPrefetcher[Responses]) -> None:
        """Switch rollouts in flight for this iteration to the newest weights, if the source can."""
        if self.source.updates_in_flight and any(all_gather_objects(prefetcher.at_work(number))):
            with fail_together(), self._newest_weights() as policy:
                self.source.update_weights_in_flight(policy, self.state.version)

    def _copy(self) -> Policy:
        """Return a frozen copy of the current weights; one shared copy if several rollouts may need it."""
        state = self.state
        if not self.source.updates_in_flight:
            return state.policy.frozen_copy().eval()
        if self._newest is None or self._newest[0] != state.version:
            self._newest = state.version, state.policy.frozen_copy().eval()
        return self._newest[1]

    def _resample(self, number: int, sampled: Sampled, sampler: Policy) -> None:
        """Replace dead groups, and add what was sampled for that."""

        def sample(prompts: Sequence[Prompt]) -> Responses:
            fresh, seconds = self._generate(number, prompts, sampler)
            sampled.every.extend(rollout for group in fresh for rollout in group)
            return fresh, seconds

        limit = self.settings.resample_dead_groups
        replacements = self.prompts.replacement_prompts(number, limit)
        is_mixture = bool(self.prompts.sources)

        def source(prompt: Prompt) -> object:
            return prompt.columns.get("source") if is_mixture else None

        more = resample(sampled.groups, sample, replacements, self.settings.shaping, limit, source)
        names = {**sampled.seconds, **more}
        sampled.seconds = {name: sampled.seconds.get(name, 0.0) + more.get(name, 0.0) for name in names}


def resample(
    groups: Groups,
    sample: Callable[[Sequence[Prompt]], Responses],
    replacements: Sequence[Prompt],
    shaping: Shaping,
    limit: int | None = None,
    source: Callable[[Prompt], object] = lambda _: None,
) -> dict[str, float]:
    """Replace dead groups in place by groups with a signal, until the ``replacements`` prompts are used up.

    Dynamic sampling (DAPO, arXiv 2503.14476) with a budget. The number of groups per iteration stays the same: a dead
    group without a replacement stays. In a mixture a group replaces one of its own source, so every source keeps its
    share.

    Args:
        groups: this rank's scored groups.
        sample: returns scored groups for some prompts, and the seconds that took.
        replacements: prompts that may be sampled.
        shaping: decides from raw rewards which groups are dead.
        limit: most prompts to sample; ``replacements`` may hold up to that many of each source.
        source: returns the source of a prompt.

    Returns:
        The seconds of all samples by name, and ``reward/resampled_groups``, the groups replaced.
    """
    budget = len(replacements) if limit is None else limit
    spare = list(replacements)
    replaced = 0
    seconds: dict[str, float] = {}
    while dead := [index for index, group in enumerate(groups) if is_dead(group, shaping)]:
        dead_sources = [source(groups[index][0].prompt) for index in dead]
        prompts = _first_of(dead_sources, spare, source)[:budget]
        if not prompts:
            break
        budget -= len(prompts)
        used = {id(prompt) for prompt in prompts}
        spare = [prompt for prompt in spare if id(prompt) not in used]
        fresh, spent = sample(prompts)
        seconds = {name: seconds.get(name, 0.0) + value for name, value in spent.items()}
        for group in fresh:
            if is_dead(group, shaping):
                continue
            group_source = source(group[0].prompt)
            place = next(index for index in dead if source(groups[index][0].prompt) == group_source)
            dead.remove(place)
            groups[place] = group
            replaced += 1
    return seconds | {"reward/resampled_groups": float(replaced)}


def _first_of(sources: Sequence[object], prompts: Sequence[Prompt], source: Callable[[Prompt], object]) -> list[Prompt]:
    """Return the first prompt of each source in turn, none twice and as long as they last; ``source`` names it."""
    spare = list(prompts)
    chosen: list[Prompt] = []
    for name in sources:
        index = next((i for i, prompt in enumerate(spare) if source(prompt) == name), None)
        if index is not None:
            chosen.append(spare.pop(index))
    return chosen
