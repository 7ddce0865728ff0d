"""Prompts in, mini-batches out: the DataModule, and the experience loader with its exact state."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch import LightningDataModule

from gspo_lightning.advantages.base import Advantages
from gspo_lightning.advantages.shaping import CombineRewards, Shaping, TruncatedResponses, TurnCredit, mask_truncated
from gspo_lightning.advantages.within_groups import GroupNormalised
from gspo_lightning.distributed import all_gather_objects, fail_together, rank_and_world
from gspo_lightning.errors import UserError
from gspo_lightning.evaluation.settings import Evaluation
from gspo_lightning.experience.collect import Experience, collect
from gspo_lightning.experience.loader import ExperienceLoader, PromptLoader, iterations
from gspo_lightning.experience.respond import Groups, resample, respond
from gspo_lightning.metrics.rollouts import measure_staleness
from gspo_lightning.packing.memory import MemoryLimit
from gspo_lightning.policy.loading import context_length
from gspo_lightning.policy.policy import Policy
from gspo_lightning.prompts import PromptSet, open_prompts, read_prompts
from gspo_lightning.prompts.encode import encode_prompts
from gspo_lightning.prompts.order import rank_share
from gspo_lightning.prompts.specials import check_stop_strings
from gspo_lightning.randomness import Purpose, permutation, stream
from gspo_lightning.resume import fingerprint
from gspo_lightning.rewards import EnvironmentReward, Reward, RewardRunner
from gspo_lightning.rollouts import Draws, EnvironmentRollouts, GroupedSampler, RolloutSource
from gspo_lightning.rollouts.partial import PartialRollouts
from gspo_lightning.rollouts.prefetcher import Job, RolloutPrefetcher
from gspo_lightning.rollouts.recording.records import record, recording_file, write_records
from gspo_lightning.rollouts.retrying import RetryingSource
from gspo_lightning.strategies.sharding import gathered
from gspo_lightning.training import checks
from gspo_lightning.types import MiniBatch, Prompt, Rollout, SamplingParams

if TYPE_CHECKING:
    from lightning.pytorch import Trainer
    from transformers import PreTrainedTokenizerBase

    from gspo_lightning.training.module import GSPOModule

__all__ = ["PromptDataModule"]

OTHERS = 16
"""Records of each set that a reward is tried on if it has nothing to say about the first."""


class PromptDataModule(LightningDataModule):
    """Rolls out, scores and cuts; one Lightning epoch is one iteration, one batch is one mini-batch.

    Args:
        train: prompts to train on: a prompt set such as ``ChainTask``, a file (``.jsonl``, ``.json``, ``.csv``,
            ``.tsv``, ``.parquet``), or a hub id (``id``, ``id:name`` or ``id:name:split``).
        val: held-out prompts, evaluated before the first update and every ``trainer.check_val_every_n_epoch``
            iterations.
        test: prompts of ``gspo test``; None takes ``val``.
        predict: prompts of ``gspo predict``; None takes ``val``.
        columns: our word -> the data's (``{prompt: question, answer: solution}``). A dot reaches into a column
            (``reward_model.ground_truth``), a list takes several as one mapping.
        rewards: name -> reward; the total is their weighted sum.
        reward_weights: name -> weight; 1 where not given.
        reward_workers: worker processes for rewards; None leaves one core to the trainer.
        reward_deadline_s: seconds of CPU time one sample may take in a reward.
        rollouts: where responses come from.
        rollout_retries: how often a rollout source that failed (a server that restarts) is asked again; the draws are
            the same, so the responses are, too.
        rollout_retry_s: seconds before the first such attempt; four times longer before each further one.
        record_rollouts: write every response that is sampled for training to ``rollouts/`` in the run folder, a file an
            iteration; ``Recorded`` replays it.
        advantages: what a reward is worth within its group.
        combine_rewards: ``weighted_sum``, or ``normalised_separately`` (each reward compared within the group on its
            own scale, then added and standardised over the batch: GDPO, arXiv 2601.05242; penalties for truncation and
            KL are subtracted after that, in reward units, each less its mean over the group).
        turn_credit: ``conversation`` (all turns share one advantage), or ``turn``: each turn of a conversation is
            judged by what was earned from it on, beside the same turn of the group's others. Needs
            ``EnvironmentReward`` and an objective with an advantage per token (``GSPOToken``).
        truncated_responses: ``keep``, ``mask`` (no part in statistics, loss and denominator) or ``penalise``.
        truncation_penalty: subtracted from the reward of a truncated response with ``penalise``; reward units.
        resample_dead_groups: prompts that may be sampled in place of those whose responses all earned the same, per
            iteration and rank (DAPO's dynamic sampling with a budget); 0 keeps every group.
        kl_in_reward: weight of a KL penalty to the initial policy that is subtracted from the reward, per nat of the
            whole response, between the trainer's own log-probabilities (one more forward pass); groups whose rewards
            are equal stay dead. 0 needs no reference. As a loss term instead: model.objective.kl_coef.
        group_size: responses per prompt (G).
        prompts_per_rollout: prompts per iteration over all ranks (P).
        prompts_in_flight: prompts that are sampled at the same time, over all ranks; above prompts_per_rollout
            responses are cut as soon as prompts_per_rollout groups are complete, and go on in the next iteration
            (partial rollouts). 0 samples every group to its end.
        max_carry: iterations through which a group may be carried in partial rollouts.
        max_staleness: iterations that sampling runs ahead of training, in a thread of its own and with a copy of the
            weights; 0 samples and trains in turn. Only then does a resumed run repeat the interrupted one exactly.
        minibatches_per_rollout: optimizer steps per pass over a rollout batch; the GSPO paper uses 4.
        epochs_per_rollout: passes over each rollout batch.
        max_tokens_per_micro_batch: tokens, padding included, that go through the model at once; memory only, never
            results.
        max_prompt_tokens: longer prompts are dropped with a message, never cut.
        max_response_tokens: longer responses are cut and count as truncated.
        temperature: of training rollouts, > 0; every log-probability uses it.
        stop_strings: texts that end a response, next to the end-of-sequence tokens. Special tokens are not part of a
            text: give their ids as stop_token_ids.
        stop_token_ids: token ids that end a response, next to the end-of-sequence tokens.
        system_prompt: system message put before every prompt; needs a chat template.
        chat_template_kwargs: passed to the chat template (for example ``{enable_thinking: false}``).
        evaluation: how held-out prompts are answered.
        seed: of prompt order and sampling; the command line sets it from ``seed_everything``.
        plugins: plug-ins that reward workers import; the command line sets it.
    """

    def __init__(
        self,
        train: PromptSet | str,
        rewards: dict[str, Reward],
        val: PromptSet | str | None = None,
        test: PromptSet | str | None = None,
        predict: PromptSet | str | None = None,
        columns: dict[str, str | list[str]] | None = None,
        reward_weights: dict[str, float] | None = None,
        reward_workers: int | None = None,
        reward_deadline_s: float = 3.0,
        rollouts: RolloutSource | None = None,
        rollout_retries: int = 3,
        rollout_retry_s: float = 1.0,
        record_rollouts: bool = False,
        advantages: Advantages | None = None,
        combine_rewards: CombineRewards = "weighted_sum",
        turn_credit: TurnCredit = "conversation",
        truncated_responses: TruncatedResponses = "keep",
        truncation_penalty: float = 0.5,
        resample_dead_groups: int = 0,
        kl_in_reward: float = 0.0,
        group_size: int = 8,
        prompts_per_rollout: int = 32,
        prompts_in_flight: int = 0,
        max_carry: int = 4,
        max_staleness: int = 0,
        minibatches_per_rollout: int = 4,
        epochs_per_rollout: int = 1,
        max_tokens_per_micro_batch: int = 16384,
        max_prompt_tokens: int = 512,
        max_response_tokens: int = 512,
        temperature: float = 1.0,
        stop_strings: list[str] | None = None,
        stop_token_ids: list[int] | None = None,
        system_prompt: str | None = None,
        chat_template_kwargs: dict[str, Any] | None = None,
        evaluation: Evaluation = Evaluation(),  # noqa: B008 (frozen)
        seed: int = 0,
        plugins: list[str] | str | None = None,
    ) -> None:
        super().__init__()
        self.train, self.val, self.test, self.predict = train, val, test, predict
        self.columns = columns or {}
        self.rewards, self.reward_weights = rewards, reward_weights
        self.reward_workers, self.reward_deadline_s = reward_workers, reward_deadline_s
        self.rollouts = rollouts if rollouts is not None else GroupedSampler()
        self.rollout_retries, self.rollout_retry_s = rollout_retries, rollout_retry_s
        self.record_rollouts = record_rollouts
        self.advantages = advantages if advantages is not None else GroupNormalised()
        self.group_size, self.prompts_per_rollout = group_size, prompts_per_rollout
        self.minibatches_per_rollout, self.epochs_per_rollout = minibatches_per_rollout, epochs_per_rollout
        self.max_tokens_per_micro_batch = max_tokens_per_micro_batch
        self.max_prompt_tokens, self.max_response_tokens = max_prompt_tokens, max_response_tokens
        self.temperature = temperature
        self.stop_strings, self.stop_token_ids = tuple(stop_strings or ()), tuple(stop_token_ids or ())
        self.system_prompt, self.chat_template_kwargs = system_prompt, dict(chat_template_kwargs or {})
        self.evaluation, self.seed = evaluation, seed
        self.plugins = (plugins,) if isinstance(plugins, str) else tuple(plugins or ())
        self.turn_credit = turn_credit
        self.environment_rewards = [name for name, reward in rewards.items() if isinstance(reward, EnvironmentReward)]
        turn_reward = next(iter(self.environment_rewards), None) if turn_credit == "turn" else None
        names = () if getattr(self.rollouts, "rewards", "score") == "recorded" else tuple(rewards)
        self.shaping = Shaping(
            truncated_responses, truncation_penalty, combine_rewards, reward_weights or {}, turn_reward, names
        )
        if isinstance(self.rollouts, EnvironmentRollouts):
            self.rollouts.system_prompt, self.rollouts.chat_template_kwargs = system_prompt, self.chat_template_kwargs
        self.resample_dead_groups, self.kl_in_reward = resample_dead_groups, kl_in_reward
        self.loader = ExperienceLoader(self.roll_out, minibatches_per_rollout, epochs_per_rollout, seed)
        self.memory = MemoryLimit(max_tokens_per_micro_batch)
        self.prompts_in_flight, self.max_carry, self.max_staleness = prompts_in_flight, max_carry, max_staleness
        self.partial: PartialRollouts | None = None
        self._ahead: RolloutPrefetcher[tuple[Groups, dict[str, float]]] | None
        self._ahead = RolloutPrefetcher(max_staleness) if max_staleness else None
        self._sampling = threading.Lock()  # a source answers one question at a time
        self._runner: RewardRunner | None = None
        self._prompts: dict[str, list[Prompt]] = {}
        checks.check_data_settings(self)

    # Lightning's hooks -------------------------------------------------------------------------------------------

    def setup(self, stage: str) -> None:
        """See :meth:`prepare`; the command line has called it already, before anything was written."""
        self.prepare(stage, self._module, self.trainer)
        if stage == "fit":
            self._run_folder = Path(self.trainer.log_dir or self.trainer.default_root_dir)
            self.memory.folder = self._run_folder
            self.memory.resume(self._run_folder)

    def prepare(self, stage: str, module: GSPOModule, trainer: Trainer) -> None:
        """Read the prompts, start the reward workers, and check everything that can be checked without the model.

        Raises:
            UserError: see :mod:`gspo_lightning.training.checks`.
        """
        if stage == "fit":
            checks.check_run(self, module, trainer)
        check_stop_strings(self.stop_strings, module.tokenizer)
        for name in {"fit": ("train", "val"), "validate": ("val",)}.get(stage, (stage,)):
            self._read(name, module.tokenizer)
            if name in self._prompts and name != "train":
                count = len(self._prompts[name][: self.evaluation.limit])
                checks.check_share(f"data.{name}", count, trainer.world_size)
        checks.check_context(self, context_length(module.settings))
        if stage == "fit":
            checks.check_prompts(self, self._prompts["train"])
            if self.prompts_in_flight > self.prompts_per_rollout:
                world = trainer.world_size
                self.partial = PartialRollouts(
                    self._patient(self.rollouts),
                    self._in_order,
                    in_flight=self.prompts_in_flight // world,
                    groups=self.prompts_per_rollout // world,
                    max_carry=self.max_carry,
                )
        source = self.rollouts if stage == "fit" else self.rollouts.for_evaluation()
        source.open(self.longest)
        if self._runner is None:
            runner = self.runner  # the workers start now: their import time hides behind the model's
            others = [(p.columns, p.text) for prompts in self._prompts.values() for p in _spread(prompts, OTHERS)]
            conversation = checks.has_environment(self.rollouts)
            for prompts in self._prompts.values():
                runner.check(prompts[0].columns, prompts[0].text, others, conversation=conversation)

    @property
    def longest(self) -> int:
        """Tokens that a row of this run may have, prompt and response, in training or in an evaluation."""
        return self.max_prompt_tokens + max(self.max_response_tokens, self.evaluation.max_response_tokens or 0)

    def fingerprints(self) -> dict[str, dict[str, Any]]:
        """Number and checksum of the prompts that were read, by name."""
        return {name: fingerprint(prompts) for name, prompts in self._prompts.items()}

    def teardown(self, stage: str) -> None:
        """Stop the reward workers and the rollout source."""
        if self._ahead is not None:
            self._ahead.close()
        if self._runner is not None:
            self._runner.close()
            self._runner = None
        self.rollouts.close()

    def train_dataloader(self) -> ExperienceLoader:
        """The experience loader: sized, one element per optimizer step of an iteration."""
        return self.loader

    def val_dataloader(self) -> PromptLoader:
        """This rank's share of the held-out prompts, in batches."""
        return self._evaluation_batches("val")

    def test_dataloader(self) -> PromptLoader:
        """This rank's share of the test prompts, in batches."""
        return self._evaluation_batches("test")

    def predict_dataloader(self) -> PromptLoader:
        """This rank's share of the prompts to answer, in batches."""
        return self._evaluation_batches("predict")

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """Mini-batches move to the device; prompts are plain data and stay."""
        return batch.to(device) if isinstance(batch, MiniBatch) else batch

    def state_dict(self) -> dict[str, Any]:
        """Iteration, position and the whole buffer of every rank: a resume continues inside a rollout batch."""
        position = self.loader.position()
        if self.partial is not None:
            position["partial"] = self.partial.state_dict()
        return {"ranks": all_gather_objects(position)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore this rank's part.

        Raises:
            UserError: the number of ranks changed in the middle of an iteration.
        """
        ranks = state_dict["ranks"]
        rank, world = rank_and_world()
        spent = all(s["trained"] >= len(s["experience"]["mini_batches"]) * s["epochs"] for s in ranks)
        spent = spent and not any(s.get("partial", {}).get("groups") for s in ranks)
        if len(ranks) != world and not spent:
            raise UserError(
                "trainer.devices",
                f"the checkpoint was written by {len(ranks)} ranks in the middle of an iteration, this run has {world}",
                fix=f"resume with {len(ranks)} ranks, or from a checkpoint at the end of an iteration",
            )
        mine = ranks[min(rank, len(ranks) - 1)]
        self.loader.go_to(mine)
        if self.partial is not None and "partial" in mine:
            self.partial.load_state_dict(mine["partial"], {p.id: p for p in self._prompts["train"]})

    # what the module and the callbacks use -----------------------------------------------------------------------

    @property
    def runner(self) -> RewardRunner:
        """The reward workers, started on first use."""
        if self._runner is None:
            self._runner = RewardRunner(
                self.rewards,
                self.reward_weights,
                num_workers=self.reward_workers,
                deadline_s=self.reward_deadline_s,
                plugins=self.plugins,
            )
            self._runner.start()
        return self._runner

    def _patient(self, source: RolloutSource) -> RolloutSource:
        return RetryingSource(source, self.rollout_retries, self.rollout_retry_s)

    @property
    def accuracy_reward(self) -> str:
        """The reward that decides what is correct in an evaluation."""
        return self.evaluation.accuracy_reward or next(iter(self.rewards))

    @property
    def token_budget(self) -> int:
        """Tokens of a micro-batch; less than configured where that did not fit, but never less than one sequence."""
        return max(self.memory.budget, self.max_prompt_tokens + self.max_response_tokens)

    @property
    def updates_per_iteration(self) -> int:
        """Optimizer steps per rollout batch."""
        return self.minibatches_per_rollout * self.epochs_per_rollout

    def sampling(self, stops: Sequence[int]) -> SamplingParams:
        """How training rollouts are drawn; ``stops`` are the policy's end tokens."""
        return SamplingParams(
            self.max_response_tokens,
            self.temperature,
            stop_token_ids=tuple(sorted({*stops, *self.stop_token_ids})),
            stop_strings=self.stop_strings,
        )

    def evaluation_sampling(self, stops: Sequence[int]) -> SamplingParams:
        """How held-out prompts are answered."""
        chosen = self.evaluation
        return dataclasses.replace(
            self.sampling(stops),
            max_response_tokens=chosen.max_response_tokens or self.max_response_tokens,
            temperature=chosen.temperature,
            top_p=chosen.top_p,
            top_k=chosen.top_k,
        )

    def answer(self, prompts: Sequence[Prompt]) -> Groups:
        """Scored responses of the live policy to held-out prompts, ``evaluation.samples`` each."""
        module = self._module
        with self._sampling:
            groups, _ = respond(
                self._patient(self.rollouts.for_evaluation()),
                module.evaluated_policy,
                prompts,
                self.runner,
                group_size=self.evaluation.samples,
                sampling=self.evaluation_sampling(module.policy.eos_token_ids),
                draws=Draws.of(self.seed, Purpose.EVAL_SAMPLING, 0),
                version=module.policy_version,
                context=self.trainer.precision_plugin.forward_context,
            )
        return groups

    def roll_out(self, iteration: int) -> Experience:
        """Everything that happens between two iterations; see :mod:`gspo_lightning.experience.collect`."""
        module = self._module
        old, context = module.old_policy, self.trainer.precision_plugin.forward_context
        old.refresh(module.policy, iteration)
        order = self._order(iteration)
        sampling = self.sampling(module.policy.eos_token_ids)
        sampled: list[Rollout] = []

        def sample(indices: Sequence[int]) -> tuple[Groups, dict[str, float]]:
            groups, seconds = self._sample(iteration, indices, sampler, module.global_step)
            sampled.extend(r for g in groups for r in g)
            return groups, seconds

        with fail_together(), gathered(old.sampling_policy(module.policy)) as sampler:
            if self._ahead is not None:
                end = iterations(self.trainer, self.updates_per_iteration)
                groups, seconds = self._ahead.take(iteration, end, self._job)
                sampled.extend(r for g in groups for r in g)
            else:
                groups, seconds = sample(rank_share(order, self.minibatches_per_rollout))
            mask_truncated([r for g in groups for r in g], self.shaping)
            if self.resample_dead_groups:
                resample(groups, seconds, sample, self._spare(iteration, order), self.shaping)
            if self.record_rollouts:
                file = recording_file(self._run_folder, iteration, rank_and_world()[0])
                write_records(file, [record(rollout, sampling, iteration) for rollout in sampled])
        if self.kl_in_reward and module.reference is not None:
            with context():
                module.reference.penalise(
                    [r for g in groups for r in g],
                    old.sampling_policy(module.policy),
                    self.kl_in_reward,
                    self.temperature,
                    self.token_budget,
                    module.device,
                )
        experience = collect(
            groups,
            seconds,
            advantages=self.advantages,
            shaping=self.shaping,
            mini_batches=self.minibatches_per_rollout,
            max_tokens=self.token_budget,
            iteration=iteration,
            device=module.device,
            packed=module.policy.packed,
            distributions=module.meter.level == "full",
            version=module.global_step,
        )
        if self.partial is not None or self._ahead is not None:
            rollouts = [r for g in groups for r in g]
            experience.metrics |= measure_staleness(rollouts, module.global_step, module.device)
        with context():
            if self.partial is not None and not module.old_logprobs.from_source(experience.mini_batches):
                with gathered(old.sampling_policy(module.policy)) as plain:  # ranks hold different numbers of responses
                    self.partial.recompute(plain, self.temperature, module.global_step, self.token_budget)
            batches = module.old_logprobs.fill(
                old,
                module.policy,
                experience.mini_batches,
                self.temperature,
                first_is_free=self.epochs_per_rollout == 1 and old.due(iteration),
            )
            if module.reference is not None:
                batches = module.reference.fill(batches, self.temperature, module.device)
        return dataclasses.replace(experience, mini_batches=batches)

    def _sample(
        self,
        iteration: int,
        indices: Sequence[int],
        policy: Policy,
        version: int,
        progress: Callable[[int, int], None] | None = None,
    ) -> tuple[Groups, dict[str, float]]:
        """Scored groups for some training prompts, and the seconds it took."""
        with self._sampling:
            return respond(
                self._patient(self.rollouts) if self.partial is None else self.partial,
                policy,
                [self._prompts["train"][i] for i in indices],
                self.runner,
                group_size=self.group_size,
                sampling=self.sampling(policy.eos_token_ids),
                draws=Draws.of(self.seed, Purpose.TRAIN_SAMPLING, iteration),
                version=version,
                context=self.trainer.precision_plugin.forward_context,
                progress=progress,
            )

    def _job(self, iteration: int) -> Job[tuple[Groups, dict[str, float]]]:
        """The rollouts of an iteration to come, with a copy of the weights of now."""
        module = self._module
        policy, version = module.policy.frozen_copy().eval(), module.global_step
        indices = rank_share(self._order(iteration), self.minibatches_per_rollout)

        def job(check: Callable[[], None]) -> tuple[Groups, dict[str, float]]:
            return self._sample(iteration, indices, policy, version, lambda *_: check())

        return job

    def _in_order(self, place: int) -> Prompt:
        """This rank's prompt at a place of the training order, for partial rollouts."""
        share = self.prompts_per_rollout // rank_and_world()[1]
        block, inside = divmod(place, share)
        return self._prompts["train"][rank_share(self._order(block), self.minibatches_per_rollout)[inside]]

    def _order(self, iteration: int) -> list[int]:
        """Indices of the prompts of an iteration: a fresh permutation for every pass over the set.

        What is left of a pass and does not fill a rollout batch is skipped, so no iteration sees a prompt twice.
        """
        per_pass = len(self._prompts["train"]) // self.prompts_per_rollout
        number, place = divmod(iteration, per_pass)
        order = permutation(stream(self.seed, Purpose.PROMPT_ORDER, number), len(self._prompts["train"]))
        return order[place * self.prompts_per_rollout : (place + 1) * self.prompts_per_rollout].tolist()

    def _spare(self, iteration: int, taken: Sequence[int]) -> list[int]:
        """This rank's prompts to sample in place of dead groups, at most ``resample_dead_groups``."""
        rank, world = rank_and_world()
        order = permutation(stream(self.seed, Purpose.RESAMPLING, iteration), len(self._prompts["train"])).tolist()
        used = set(taken)
        return [i for i in order if i not in used][rank::world][: self.resample_dead_groups]

    def _read(self, name: str, tokenizer: PreTrainedTokenizerBase) -> None:
        source = getattr(self, name) if name in ("train", "val") else getattr(self, name) or self.val
        if source is None or name in self._prompts:
            return
        try:
            records = read_prompts(open_prompts(source, self.columns))
        except UserError as error:
            raise UserError(f"data.{name}", error.problem, fix=error.fix) if error.field == "data" else error from None
        self._prompts[name] = encode_prompts(
            records,
            tokenizer,
            max_prompt_tokens=self.max_prompt_tokens,
            system_prompt=self.system_prompt,
            chat_template_kwargs=self.chat_template_kwargs,
            field=f"data.{name}",
        )

    def _evaluation_batches(self, name: str) -> PromptLoader:
        rank, world = rank_and_world()
        mine = self._prompts.get(name, [])[: self.evaluation.limit][rank::world]
        size = self.evaluation.batch_size
        return PromptLoader([mine[i : i + size] for i in range(0, len(mine), size)])

    @property
    def _module(self) -> GSPOModule:
        if self.trainer is None:
            raise RuntimeError("the data module is not attached to a trainer yet")
        module: GSPOModule = self.trainer.lightning_module
        return module


def _spread(prompts: Sequence[Prompt], count: int) -> Sequence[Prompt]:
    """About so many of them, from all over the set."""
    return prompts[:: max(1, len(prompts) // count)][:count]
