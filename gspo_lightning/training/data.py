"""PromptDataModule: turns prompts into scored rollouts and mini-batches."""

from __future__ import annotations

import dataclasses
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch import LightningDataModule

from gspo_lightning.core.distributed import gather_objects, rank_and_world
from gspo_lightning.core.randomness import Purpose
from gspo_lightning.core.signatures import WholeSignature
from gspo_lightning.core.types import MiniBatch, SamplingParams
from gspo_lightning.data.prompts import Curriculum, Mixture, PromptSet
from gspo_lightning.data.prompts.mixture import all_rewards
from gspo_lightning.data.prompts.order import ORDER, PromptOrder
from gspo_lightning.data.prompts.pictures.reading import Pictures
from gspo_lightning.data.prompts.sets import PromptSets
from gspo_lightning.data.prompts.specials import check_stop_strings
from gspo_lightning.loop.advantages.shaping import CombineRewards, Shaping, TruncatedResponses, TurnCredit
from gspo_lightning.loop.experience import sources
from gspo_lightning.loop.experience.collect import Experience
from gspo_lightning.loop.experience.generate_and_score import GenerateAndScore, Unrewarded, total_steps
from gspo_lightning.loop.experience.iteration import Iteration
from gspo_lightning.loop.experience.loader import ExperienceLoader, PromptLoader, part_of
from gspo_lightning.loop.experience.partial import PartialRollouts
from gspo_lightning.loop.experience.prefetcher import RolloutPrefetcher
from gspo_lightning.loop.experience.retrying import RetryingSource
from gspo_lightning.loop.experience.sampling import Responses, Sampling
from gspo_lightning.loop.experience.settings import ExperienceSettings
from gspo_lightning.loop.experience.training_state import TrainingState
from gspo_lightning.policy.packing.deal import Deal
from gspo_lightning.policy.packing.memory import MemoryLimit
from gspo_lightning.policy.policy import Policy
from gspo_lightning.rewards import EnvironmentReward, RewardRunner
from gspo_lightning.rewards.by_record import Rewards
from gspo_lightning.rewards.workers.runner_settings import weights_by_name
from gspo_lightning.rollouts import GroupedSampler, RolloutSource
from gspo_lightning.rollouts.wrapping import WrappingSource
from gspo_lightning.training.evaluation.evaluation_settings import Evaluation
from gspo_lightning.training.evaluation.suites import SuiteEvaluations

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class PromptDataModule(LightningDataModule):
    """Samples and scores responses and cuts them into mini-batches. A Lightning epoch is an iteration.

    Args:
        train: prompts to train on: a prompt set such as ``ChainTask``, a file (``.jsonl``, ``.json``, ``.csv``,
            ``.tsv``, ``.parquet``), a hub id (``id``, ``id:name`` or ``id:name:split``), or a ``Mixture`` of these.
        val: held-out prompts, evaluated before training and every ``trainer.check_val_every_n_epoch`` iterations.
        test: prompts of ``gspo test``; None takes ``val``.
        predict: prompts of ``gspo predict``; None takes ``val``.
        columns: our name -> the data's (``{prompt: question, answer: solution}``). A dot reaches into a column
            (``reward_model.ground_truth``), a list combines several into one mapping.
        rewards: name -> reward, or ``{by: <column>, <value>: <reward>, ...}`` to choose one by a column of the record;
            the total is their weighted sum. Sources of a ``Mixture`` may have their own. Only a run
            with a teacher (``model.teacher``) can do without.
        reward_weights: name -> weight, by default 1; or a list of all weights in the order of the rewards.
        reward_workers: worker processes for rewards; None: all cores but one.
        reward_deadline_s: CPU time limit of one sample in a reward, in seconds.
        rollouts: the source of responses.
        rollout_retries: how often to retry a rollout source that failed (a server that restarts); the random draws, and
            so the responses, stay the same.
        rollout_retry_s: seconds before the first retry; four times as long before each further one.
        combine_rewards: ``weighted_sum``, or ``normalised_separately`` (each reward is compared within the group on
            its own scale, then the sum is standardised over the batch: GDPO, arXiv 2601.05242; penalties for truncation
            and KL are subtracted after that, in reward units, each less its mean over the group).
        turn_credit: ``conversation`` (all turns share one advantage), or ``turn``: a turn counts by the rewards from it
            on, compared with the same turn of the group's other conversations. Needs ``EnvironmentReward`` and an
            objective with an advantage per token (``GSPOToken``).
        truncated_responses: ``keep``, ``mask`` (excluded from statistics, loss and denominator) or ``penalise``.
        truncation_penalty: subtracted from the reward of a truncated response with ``penalise``; reward units.
        chat_template_kwargs: passed to the chat template (for example ``{enable_thinking: false}``).
        pictures: settings for reading pictures of prompts: their limit, treatment of bad ones (docs/vision.md).
        evaluation: settings for answering held-out prompts.
        suites: benchmarks that every evaluation includes, by their names in ``gspo evaluate``.
        curriculum: chooses an iteration's prompts by earlier results; None: each once a pass, or by the column
            ``weight``.
        plugins: plug-ins that reward workers import; the command line sets it.
        **experience: amount of sampling, its parameters, and how mini-batches are made; the fields of
            :class:`~gspo_lightning.loop.experience.settings.ExperienceSettings`, besides ``shaping``.
    """

    __signature__ = WholeSignature(ExperienceSettings, computed=("shaping",))

    score_held_out: GenerateAndScore
    """Answers held-out prompts, after :meth:`bind`."""

    def __init__(
        self,
        train: PromptSet | str,
        rewards: Rewards | None = None,
        val: PromptSet | str | None = None,
        test: PromptSet | str | None = None,
        predict: PromptSet | str | None = None,
        columns: dict[str, str | list[str]] | None = None,
        reward_weights: dict[str, float] | list[float] | None = None,
        reward_workers: int | None = None,
        reward_deadline_s: float = 3.0,
        rollouts: RolloutSource | None = None,
        rollout_retries: int = 3,
        rollout_retry_s: float = 1.0,
        combine_rewards: CombineRewards = "weighted_sum",
        turn_credit: TurnCredit = "conversation",
        truncated_responses: TruncatedResponses = "keep",
        truncation_penalty: float = 0.5,
        chat_template_kwargs: dict[str, Any] | None = None,
        pictures: Pictures = Pictures(),  # noqa: B008 (frozen)
        evaluation: Evaluation = Evaluation(),  # noqa: B008 (frozen)
        suites: list[str] | None = None,
        curriculum: Curriculum | None = None,
        plugins: list[str] | str | None = None,
        **experience: Any,
    ) -> None:
        super().__init__()
        if val is None and isinstance(train, Mixture):
            val = train.held_out()
        prompts = {"train": train, "val": val, "test": test or val, "predict": predict or val}
        judges = all_rewards(rewards or {}, *prompts.values())
        weights = weights_by_name(judges, reward_weights)
        self.val = val
        self.evaluation = evaluation
        self.rewards = judges
        self.curriculum = curriculum
        self.turn_credit = turn_credit
        self.rollouts = rollouts if rollouts is not None else GroupedSampler()
        self._retrying = partial(RetryingSource, retries=rollout_retries, wait_s=rollout_retry_s)
        self._make_runner = partial(
            RewardRunner, judges, weights, num_workers=reward_workers, deadline_s=reward_deadline_s,
            plugins=(plugins,) if isinstance(plugins, str) else tuple(plugins or ()),
        )  # fmt: skip
        by_turn = [name for name, reward in judges.items() if isinstance(reward, EnvironmentReward)]
        recorded = getattr(self.rollouts, "rewards", "score") == "recorded"  # then their names are in the rollouts
        shaping = Shaping(
            truncated_responses,
            truncation_penalty,
            combine_rewards,
            weights,
            turn_reward=next(iter(by_turn), None) if turn_credit == "turn" else None,
            rewards=() if recorded else tuple(judges),
        )
        self.settings = settings = ExperienceSettings(shaping=shaping, **experience)
        self._keeps_deal = settings.deal is None
        system_prompt = settings.system_prompt
        template_kwargs = chat_template_kwargs or {}
        self.suites = SuiteEvaluations(suites or (), reward_workers, system_prompt, chat_template_kwargs)
        sources.check_sources(self.settings, self.rollouts, judges, weights, turn_credit)
        evaluation.check(judges)
        if isinstance(self.rollouts, WrappingSource):
            self.rollouts.system_prompt = system_prompt
            self.rollouts.chat_template_kwargs = template_kwargs
        self.loader = ExperienceLoader(
            self._roll_out, settings.minibatches_per_rollout, settings.epochs_per_rollout, settings.seed
        )
        self.memory = MemoryLimit(settings.max_tokens_per_micro_batch)
        self.partial: PartialRollouts | None = None
        self._order: PromptOrder | None = None
        self.iteration: Iteration | None = None
        """Produces the next rollout batch, after :meth:`bind`."""
        self._prefetcher = RolloutPrefetcher[Responses](settings.max_staleness) if settings.max_staleness else None
        self._one_request = threading.Lock()  # a source answers one request at a time
        self._runner: RewardRunner | None = None
        self.sets = PromptSets(
            prompts, columns or {}, settings.max_prompt_tokens, system_prompt, template_kwargs, pictures
        )

    # before a run ------------------------------------------------------------------------------------------------

    def prepare(self, stage: str, tokenizer: PreTrainedTokenizerBase, context: int | None, world: int) -> None:
        """Read the prompts, start the reward workers, and check all that needs no model.

        Args:
            stage: ``fit``, ``validate``, ``test`` or ``predict``.
            tokenizer: of the model.
            context: positions that the model was built for, if its config says so.
            world: processes of this run.

        Raises:
            UserError: prompts, rewards or rollouts cannot be used.
        """
        check_stop_strings(self.settings.stop_strings or (), tokenizer)
        sources.check_reading(tokenizer, (self.rollouts, self.rollouts.for_evaluation()))
        sources.read_sets(self.sets, stage, tokenizer, self.evaluation.limit, world, graded=bool(self.rewards))
        sources.check_shown(tokenizer, self.sets, (self.rollouts, self.rollouts.for_evaluation()))
        sources.check_context(self.longest, context)
        self.suites.prepare()
        if stage == "fit":
            self._order = sources.training_order(self.sets, self.settings, self.curriculum)
            self.partial = sources.partial_rollouts(self._retrying(self.rollouts), self._order, self.settings, world)
        source = self.rollouts if stage == "fit" else self.rollouts.for_evaluation()
        source.open(self.longest)
        if self._runner is None and self.rewards:  # the workers start now: their import time hides behind the model's
            sources.check_rewards(self.runner, self.sets, self.rollouts, tokenizer)

    def bind(self, state: TrainingState, folder: Path, *, distributions: bool = True) -> None:
        """Connect the training state that all later rollouts are for.

        Args:
            state: provides the policy.
            folder: the run folder.
            distributions: keep measurements of single responses.
        """
        settings = self.settings
        context = state.forward_context
        build = partial(GenerateAndScore, total_steps=partial(total_steps, state, settings.updates_per_iteration))
        rewards = self.runner if self.rewards else Unrewarded()
        self.score_held_out = build(
            self._retrying(self.rollouts.for_evaluation()), rewards, self.evaluation.samples,
            settings.seed, Purpose.EVAL_SAMPLING, context, self._one_request,
        )  # fmt: skip
        if self._order is None:
            return
        generate_and_score = build(
            self._retrying(self.rollouts) if self.partial is None else self.partial, rewards,
            settings.group_size, settings.seed, Purpose.TRAIN_SAMPLING, context, self._one_request,
        )  # fmt: skip
        folder.mkdir(parents=True, exist_ok=True)  # a rank on another machine; later, what is missing was deleted
        self.iteration = Iteration(
            Sampling(state, settings, self._order, generate_and_score, self.partial, self._prefetcher),
            lambda: self.token_budget, folder=folder, distributions=distributions,
            accuracy_reward=self.accuracy_reward, memory=self.memory,
        )  # fmt: skip
        self.memory.folder = folder
        self.memory.resume(folder)

    def fingerprints(self) -> dict[str, dict[str, Any]]:
        """Return number and checksum of the prompts that were read, by name."""
        return self.sets.fingerprints()

    # Lightning's hooks -------------------------------------------------------------------------------------------

    def teardown(self, stage: str) -> None:
        """Stop the reward workers and the rollout source."""
        if self._prefetcher is not None:
            self._prefetcher.close()
        if self._runner is not None:
            self._runner.close()
            self._runner = None
        self.rollouts.close()

    def train_dataloader(self) -> ExperienceLoader:
        """Return the experience loader: sized, one element per optimizer step of an iteration."""
        return self.loader

    def val_dataloader(self) -> PromptLoader:
        """Return this rank's share of the held-out prompts, in batches."""
        return self._held_out("val")

    def test_dataloader(self) -> PromptLoader:
        """Return this rank's share of the test prompts, in batches."""
        return self._held_out("test")

    def predict_dataloader(self) -> PromptLoader:
        """Return this rank's share of the prompts to answer, in batches."""
        return self._held_out("predict")

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """Move mini-batches to the device; prompts are plain data and stay."""
        return batch.to(device) if isinstance(batch, MiniBatch) else batch

    def state_dict(self) -> dict[str, Any]:
        """Return positions and remaining buffers of all ranks (on rank 0, which writes them), and the prompt order."""
        position = self.loader.position()
        if self.partial is not None:
            position["partial"] = self.partial.state_dict()
        order = {"order": ORDER} if self._order is None else self._order.state_dict()
        return {"ranks": gather_objects(position), "deal": self.settings.dealing, **order}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore this rank's part.

        Raises:
            UserError: the number of ranks changed in the middle of an iteration.
        """
        position = part_of(state_dict["ranks"], *rank_and_world())
        if self._order is not None:
            self._order.load_state_dict(state_dict)
        if self._keeps_deal:
            self._deal_as(state_dict["deal"])
        self.loader.go_to(position)
        if self.partial is not None and "partial" in position:
            self.partial.load_state_dict(position["partial"], self.sets.read["train"].by_id)

    # used by the module and the callbacks ------------------------------------------------------------------------

    @property
    def runner(self) -> RewardRunner:
        """The runner of the reward workers, started on first use."""
        if self._runner is None:
            self._runner = self._make_runner()
            self._runner.start()
        return self._runner

    @property
    def longest(self) -> int:
        """Largest number of tokens in a row, prompt and response, in training or in an evaluation."""
        longest_response = max(self.settings.max_response_tokens, self.evaluation.max_response_tokens or 0)
        return self.settings.max_prompt_tokens + longest_response

    def held_out_sampling(self, policy: Policy) -> SamplingParams:
        """Return the sampling parameters of evaluations."""
        return self.evaluation.sampling(self.settings.sampling(policy.eos_token_ids))

    @property
    def token_budget(self) -> int:
        """Tokens per micro-batch: as configured, or less after running out of memory; at least one sequence."""
        return max(self.memory.budget, self.settings.max_prompt_tokens + self.settings.max_response_tokens)

    @property
    def accuracy_reward(self) -> str:
        """Name of the reward that decides which responses are correct in an evaluation."""
        return self.evaluation.accuracy_reward or next(iter(self.rewards), "")

    def _roll_out(self, number: int) -> Experience:
        if self.iteration is None:
            raise RuntimeError("no training state: call bind() before the first rollout")
        return self.iteration.run(number)

    def _deal_as(self, deal: Deal) -> None:
        self.settings = dataclasses.replace(self.settings, deal=deal)
        if self.iteration is not None:
            self.iteration.settings = self.settings

    def _held_out(self, name: str) -> PromptLoader:
        return PromptLoader(self.sets.share(name, self.evaluation.limit, self.evaluation.batch_size))
