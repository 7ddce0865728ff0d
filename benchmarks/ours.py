"""This package, put together from its parts as the trainer of the library does, with a clock at each phase."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from benchmarks.clock import TOTAL, Phases
from benchmarks.forced import ScheduledDraws, check_lengths
from benchmarks.workloads import Workload
from gspo_lightning.core.host_memory import keep_freed_memory
from gspo_lightning.core.randomness import Purpose, stream
from gspo_lightning.core.types import MiniBatch, Rollout, SamplingParams
from gspo_lightning.loop.advantages.assign import assign_advantages
from gspo_lightning.loop.advantages.shaping import Shaping
from gspo_lightning.loop.advantages.within_groups import GroupNormalised
from gspo_lightning.loop.metrics.sums import MetricSums
from gspo_lightning.loop.old_policy.logprobs import OldLogProbs
from gspo_lightning.loop.old_policy.snapshots import CachedLogProbs
from gspo_lightning.loop.old_policy.teacher import Teacher
from gspo_lightning.loop.update.loss import LossTerms, micro_batch_loss, mini_batch_count
from gspo_lightning.loop.update.optimizers import fuse
from gspo_lightning.objectives import GSPO, Objective
from gspo_lightning.objectives.trial import learns_without_advantage
from gspo_lightning.policy.load.model_settings import Layout
from gspo_lightning.policy.model_checks.checks import choose_layout
from gspo_lightning.policy.numerics.autocast_weights import autocast_dtype
from gspo_lightning.policy.packing.deal import DEFAULT_DEAL, Deal
from gspo_lightning.policy.packing.rollout_batch import RolloutBatch
from gspo_lightning.policy.policy import Policy
from gspo_lightning.rollouts import GroupedSampler

__all__ = ["Groups", "Ours", "recorded"]

Groups = list[list[Rollout]]


class Ours:
    """One side of a comparison.

    Args:
        model: trained in place.
        tokenizer: the model's.
        workload: prompts and scheduled lengths.
        max_tokens: budget of a micro-batch; the default of ``gspo fit``.
        layout: how rows go through the model, as ``model.layout`` of ``gspo fit``.
        deal: which rows a mini-batch has, as ``data.deal``.
        optimizer: of the weights that are trained; default: AdamW.
        context: entered around forwards (autocast).
        sync: waits for the device.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        workload: Workload,
        *,
        max_tokens: int = 16384,
        layout: Layout = "auto",
        deal: Deal = DEFAULT_DEAL,
        optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer] | None = None,
        context: Callable[[], AbstractContextManager[Any]] = nullcontext,
        sync: Callable[[], None] | None = None,
    ) -> None:
        self.policy = Policy(model, tokenizer)
        with context():
            dtype = autocast_dtype(self.policy.device)
        longest = int(workload.lengths.max()) + workload.prompt_tokens[1]
        choose_layout(self.policy, layout, longest, dtype=dtype)
        self.workload, self.max_tokens, self.context = workload, max_tokens, context
        self.deal = deal
        self.prompts = workload.make_prompts(model.config.vocab_size)
        self.sampler = GroupedSampler()
        self.objective: Objective = GSPO(3e-4, 4e-4)
        self.old_policy = CachedLogProbs()
        self.old_logprobs = OldLogProbs("auto", self.objective)
        build = optimizer or (lambda weights: torch.optim.AdamW(weights, lr=1e-6, weight_decay=0.0))
        self.optimizer = build([p for p in model.parameters() if p.requires_grad])
        fuse(self.optimizer)
        keep_freed_memory(self.policy.device)
        self.teacher: Teacher | None = None
        """Followed by an objective with ``distill_coef``."""
        self.iteration = 0
        self._sync = sync

    def phases(self) -> Phases:
        """A fresh clock."""
        return Phases(self._sync) if self._sync else Phases()

    def generate(self) -> Groups:
        """Groups of the scheduled lengths, scored."""
        self.policy.eval()
        self.iteration += 1
        lengths = self.workload.lengths
        with self.context():
            groups = self.sampler.generate(
                self.policy,
                self.prompts,
                group_size=self.workload.group_size,
                sampling=SamplingParams(int(lengths.max()), stop_token_ids=self.policy.eos_token_ids),
                draws=ScheduledDraws(stream(0, Purpose.TRAIN_SAMPLING, self.iteration), lengths.to(self.policy.device)),
            )
        self.policy.train()
        return groups

    def pack(self, groups: Groups, mini_batches: int | None = None) -> list[MiniBatch]:
        """Advantages and mini-batches from groups with rewards."""
        assign_advantages(groups, GroupNormalised(), Shaping(), self.policy.device)
        return self.cut(groups, mini_batches)

    def cut(self, groups: Groups, mini_batches: int | None = None) -> list[MiniBatch]:
        """Mini-batches from groups with advantages."""
        batch = RolloutBatch.of(
            groups,
            mini_batches=mini_batches or self.workload.mini_batches,
            max_tokens=self.max_tokens,
            packed=self.policy.packed,
            deal=self.deal,
        )
        batch.take_advantages(mark=self.policy.routing is None and not learns_without_advantage(self.objective))
        return batch.mini_batches

    def prepare(self, batches: Sequence[MiniBatch]) -> list[MiniBatch]:
        """Old log-probabilities, where the sampler's will not do."""
        with self.context():
            return self.old_logprobs.fill(self.old_policy, self.policy, batches, 1.0, first_is_free=True)

    def accumulate(self, batch: MiniBatch, phases: Phases, sums: MetricSums, on_policy: bool = False) -> None:
        """The gradient of one mini-batch."""
        batch = batch.to(self.policy.device)
        terms = LossTerms(self.policy, self.old_policy, self.objective, 1.0, teacher=self.teacher)
        denominator = mini_batch_count(self.objective, batch.micro_batches)
        for part in batch.micro_batches:
            with phases("forward"), self.context():
                loss = micro_batch_loss(part, terms, denominator=denominator, sums=sums, on_policy=on_policy)
            with phases("backward"):
                loss.backward()

    def update(self, batch: MiniBatch, phases: Phases, sums: MetricSums, on_policy: bool = False) -> None:
        """One optimizer step."""
        self.optimizer.zero_grad(set_to_none=True)
        self.accumulate(batch, phases, sums, on_policy)
        with phases("optimizer"):
            torch.nn.utils.clip_grad_norm_(self.policy.model.parameters(), 1.0)
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def step(self) -> Phases:
        """A whole rollout batch: generation, rewards, old log-probabilities, four updates, metrics."""
        phases = self.phases()
        with phases(TOTAL):
            with phases("generate"):
                groups = self.generate()
            rollouts = [rollout for group in groups for rollout in group]
            rewards = self.workload.rewards([rollout.token_ids.tolist() for rollout in rollouts])
            for rollout, value in zip(rollouts, rewards, strict=True):
                rollout.reward = value
            self.train_on_policy(groups, phases)
        check_lengths(groups, self.workload.lengths)
        return phases

    def train_on_policy(self, groups: Groups, phases: Phases) -> None:
        """Old log-probabilities and four updates on groups that the present weights are taken to have sampled."""
        batches = self.pack(groups)
        with phases("old"):
            batches = self.prepare(batches)
        self._updates(batches, phases, first_is_on_policy=True)

    def train(self, groups: Groups) -> Phases:
        """Four updates on given rollouts, whose ``logprobs`` are taken as the old ones."""
        phases = self.phases()
        with phases(TOTAL):
            self._updates(recorded(self.pack(groups)), phases)
        return phases

    def _updates(self, batches: Sequence[MiniBatch], phases: Phases, first_is_on_policy: bool = False) -> None:
        for batch in batches:
            sums, on_policy = MetricSums(), first_is_on_policy and batch.index == 0
            self.update(batch, phases, sums, on_policy)
            measured = sums.reduce()[0]
            if on_policy:
                self.old_logprobs.note(measured)


def recorded(batches: Sequence[MiniBatch]) -> list[MiniBatch]:
    """Mini-batches whose old log-probabilities are those that came with the rollouts."""
    return [
        replace(b, micro_batches=[replace(m, old_logprobs=m.behaviour_logprobs) for m in b.micro_batches])
        for b in batches
    ]
