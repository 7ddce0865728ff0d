"""Check that settings of trainer, model and data go together, before the first rollout; each error names its fix."""

from __future__ import annotations

import logging
import math
from typing import Protocol

from lightning.pytorch import Trainer
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from transformers import PreTrainedTokenizerBase

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.types import SamplingParams
from gspo_lightning.data.prompts.specials import check_turn_end
from gspo_lightning.loop.advantages.advantages import Advantages
from gspo_lightning.loop.advantages.shaping import Shaping
from gspo_lightning.loop.critic import ValueModel
from gspo_lightning.loop.experience.settings import ExperienceSettings
from gspo_lightning.loop.experience.sources import has_environment
from gspo_lightning.loop.metrics.update_metrics import UpdateMetrics
from gspo_lightning.loop.old_policy.logprobs import OldLogProbs
from gspo_lightning.loop.old_policy.old_policy import OldPolicy
from gspo_lightning.loop.update.optimizers import try_optimizer
from gspo_lightning.objectives import Objective
from gspo_lightning.objectives.trial import try_objective
from gspo_lightning.policy.load.model_settings import ModelSettings
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.routing import Replay
from gspo_lightning.policy.strategies.checks import check_strategy
from gspo_lightning.policy.strategies.sharding_strategy import has_whole_weights, sharding_of
from gspo_lightning.rewards import StepReward
from gspo_lightning.rewards.by_record import Judges
from gspo_lightning.rollouts.sampler.sampler import GroupedSampler
from gspo_lightning.training.data import PromptDataModule
from gspo_lightning.training.precision_checks import check_device, check_loss_scale, check_precision
from gspo_lightning.training.teacher import TeacherModel, check_teacher
from gspo_lightning.training.trainer_checks import check_trainer

log = logging.getLogger(__name__)

_NOT_NEUTRAL = (
    "temperature", "top_p", "top_k", "min_p", "typical_p", "repetition_penalty", "no_repeat_ngram_size",
    "min_new_tokens", "bad_words_ids", "suppress_tokens",
)  # fmt: skip
"""Fields of a generation config that would change the sampled distribution."""


class RunModule(Protocol):
    """The attributes of the module that are checked before there is a policy."""

    settings: ModelSettings
    objective: Objective
    old_policy: OldPolicy
    old_logprobs: OldLogProbs
    update_metrics: UpdateMetrics
    segment_delimiters: list[str]
    ess_step_scaling: bool
    allow_unusual_clip: bool
    routing_replay: Replay
    critic: ValueModel | None
    build_optimizer: OptimizerCallable
    build_scheduler: LRSchedulerCallable | None
    teacher_model: TeacherModel | None

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer of the model."""


def check_run(data: PromptDataModule, module: RunModule, trainer: Trainer) -> None:
    """Check that the settings of trainer, model and data go together.

    Raises:
        UserError: they do not.
    """
    _check_objective(data, module)
    try_optimizer(module.build_optimizer)
    check_teacher(module.teacher_model, module.objective, module.settings, module.tokenizer, data, trainer)
    _check_replay(data, module)
    check_critic(module.critic, data.settings.estimator, data.settings.shaping, module.objective)
    sharding = sharding_of(trainer.strategy)
    if module.critic is not None and "HYBRID" in str(getattr(sharding, "sharding_strategy", "")):
        raise UserError(
            "model.critic",
            "is set, but HYBRID_SHARD has several copies of every shard, which its checkpoints do not know",
            fix="use sharding_strategy: FULL_SHARD, or FSDP2Strategy",
        )
    if module.critic is not None and module.critic.share and sharding is not None:
        raise UserError(
            "model.critic.share",
            f"is true, but {type(trainer.strategy).__name__} gathers the policy's weights around its own forward pass",
            fix="use share: false (the critic is then sharded like the policy), or trainer.strategy: ddp",
        )
    check_trainer(data, module.update_metrics.level, trainer)
    check_precision(str(trainer.precision))
    check_loss_scale(module.critic, trainer)
    check_device(str(trainer.precision), module.settings.dtype, trainer.strategy.root_device)
    check_strategy(trainer.strategy)
    data.settings.check_ranks(trainer.world_size)
    if module.critic is not None and module.build_scheduler is not None:
        _say_what_a_schedule_counts(module.critic, data.settings)
    _check_adapters(module, trainer)
    _check_batch_invariant(data, module, trainer)
    if data.settings.max_staleness:
        _check_ahead(data, module, trainer)
    if data.settings.updates_per_iteration == 1:
        log.warning(
            "one update per rollout batch: the policy equals the old policy at every update, so no ratio can leave 1 "
            "and clipping cannot bind (data.minibatches_per_rollout: 4 is the GSPO paper's setting)"
        )


def _check_objective(data: PromptDataModule, module: RunModule) -> None:
    try_objective(module.objective)
    reason = module.objective.unusual_clip()
    if reason and not module.allow_unusual_clip:
        raise UserError(
            "model.objective", reason, fix="correct the range, or say model.allow_unusual_clip: true if you mean it"
        )
    if module.objective.positive_nll_coef > 0 and not data.rewards:
        raise UserError(
            "model.objective.positive_nll_coef",
            f"is {module.objective.positive_nll_coef:g}, but data.rewards is empty: no response can be correct",
            fix="name a reward, for example rewards: {correct: ExactMatch}, or leave positive_nll_coef out",
        )
    if module.ess_step_scaling and module.objective.correction == "none":
        raise UserError(
            "model.ess_step_scaling",
            "is true, but without a correction every sample has the weight 1",
            fix="use model.objective.correction: sequence, or leave ess_step_scaling out",
        )
    scored = _check_steps(data, module)
    given = getattr(module.objective, "by", None) == "given"
    if given != bool(module.segment_delimiters) and not (given and scored):
        raise UserError(
            "model.segment_delimiters",
            "and an objective over given segments (Segment with by: given) need each other",
            fix="set both, or neither",
        )
    if data.turn_credit == "turn" and not module.objective.per_token_advantages:
        raise UserError(
            "data.turn_credit",
            f"is 'turn', but {type(module.objective).__name__} takes one advantage per response",
            fix="use model.objective: GSPOToken, or set data.turn_credit: conversation",
        )


def _check_steps(data: PromptDataModule, module: RunModule) -> bool:
    """True if a reward scores steps; refuse settings that cannot use an advantage per step."""
    judges = Judges(data.rewards)
    names = [judges.owner[name] for name, reward in judges.single.items() if isinstance(reward, StepReward)]
    if not names:
        return False
    field = f"data.rewards.{names[0]}"
    if not module.objective.per_token_advantages:
        raise UserError(
            field,
            f"scores steps, but {type(module.objective).__name__} takes one advantage per response",
            fix="use model.objective: GSPOToken, or Segment with by: given, whose segments are then the steps",
        )
    if data.settings.shaping.combine != "weighted_sum":
        raise UserError(
            "data.combine_rewards",
            f"is {data.settings.shaping.combine!r}, but {field} scores steps, which are compared with each other",
            fix="use weighted_sum",
        )
    if has_environment(data.rollouts) or getattr(data.rollouts, "rewards", "score") == "recorded":
        why = "are conversations, not single responses" if has_environment(data.rollouts) else "bring recorded rewards"
        raise UserError(
            field,
            f"scores steps, but the rollouts of {type(data.rollouts).__name__} {why}",
            fix="use data.rollouts: GroupedSampler, or a reward that scores whole responses",
        )
    return True


def check_critic(
    critic: ValueModel | None, advantages: Advantages, shaping: Shaping, objective: Objective, where: str = "data."
) -> None:
    """Check that critic, advantages and objective go together (the table in docs/critic.md).

    Raises:
        UserError: they do not go together.
    """
    if not advantages.per_token:
        if critic is not None:
            raise UserError(
                f"{where}advantages",
                f"is {type(advantages).__name__}, which never asks the critic",
                fix=f"use {where}advantages: GAE, or leave the critic out",
            )
        return
    name = type(advantages).__name__
    if critic is None:
        raise UserError(
            f"{where}advantages",
            f"is {name}, which needs the values of a critic",
            fix="add one (configs/critic.yaml), or use GroupNormalised",
        )
    if not objective.per_token_advantages:
        raise UserError(
            f"{where}advantages",
            f"is {name}, which gives every token its own advantage, but {type(objective).__name__} takes one per "
            "response",
            fix="use GSPOToken, or a token-level objective such as PPO or GRPO",
        )
    if shaping.combine == "normalised_separately":
        raise UserError(
            f"{where}combine_rewards",
            f"is 'normalised_separately', which compares each reward within its group, but {name} compares none",
            fix="use weighted_sum",
        )


def _say_what_a_schedule_counts(critic: ValueModel, settings: ExperienceSettings) -> None:
    waits = math.ceil(critic.warm_up / (settings.minibatches_per_rollout * critic.epochs))
    if waits:
        log.info(
            "model.critic.warm_up: the first %d updates train the critic alone, and model.lr_scheduler does not count "
            "them: one that is to end with the run has that many steps less",
            waits * settings.updates_per_iteration,
        )


def _check_replay(data: PromptDataModule, module: RunModule) -> None:
    if module.routing_replay == "R2" and module.old_logprobs.choice == "source":
        raise UserError(
            "model.old_logprobs",
            "is 'source', but model.routing_replay: R2 replays a forward pass of the old policy: there would be none",
            fix="use model.old_logprobs: recompute, or model.routing_replay: R3",
        )
    if module.routing_replay == "R3" and not data.rollouts.records_routes:
        raise UserError(
            "model.routing_replay",
            f"is R3, but {type(data.rollouts).__name__} does not say which experts it sampled with",
            fix="use data.rollouts: GroupedSampler, or VLLMServer with routed_experts: true, or "
            "model.routing_replay: R2",
        )
    if module.routing_replay == "R3" and data.settings.partial and not data.rollouts.extends_routes:
        raise UserError(
            "data.prompts_in_flight",
            f"cuts responses, but {type(data.rollouts).__name__} does not say which experts it sampled a cut one with, "
            "which model.routing_replay: R3 needs",
            fix="use data.rollouts: GroupedSampler, or model.routing_replay: R2, or 0 for no partial rollouts",
        )


def check_sampling(policy: Policy, sampling: SamplingParams) -> None:
    """Log differences between the model's generation config and the sampling and end tokens of training rollouts."""
    config = getattr(policy.model, "generation_config", None)
    settings = config.to_diff_dict() if config is not None else {}
    unused = ", ".join(f"{name} {settings[name]}" for name in _NOT_NEUTRAL if name in settings)
    if unused:
        log.info(
            "the model's generation_config (%s) is not used: training samples from the unchanged policy at "
            "temperature %g; evaluations use data.evaluation",
            unused, sampling.temperature,
        )  # fmt: skip
    check_turn_end(policy.tokenizer, sampling.stop_token_ids)


def _check_adapters(module: RunModule, trainer: Trainer) -> None:
    lora = module.settings.lora
    if lora is not None and lora.base == "4bit" and sharding_of(trainer.strategy) is not None:
        raise UserError(
            "model.lora.base",
            "is 4bit, but packed weights are not numbers that can be cut into shards and put together again",
            fix="use trainer.strategy: ddp (packed weights are small), or base: as_loaded",
        )


def _check_batch_invariant(data: PromptDataModule, module: RunModule, trainer: Trainer) -> None:
    if not module.settings.batch_invariant:
        return
    kind = trainer.strategy.root_device.type
    if kind != "cpu":
        problem = f"is true, but its kernels were only shown to be exact on a CPU, and this run is on {kind}"
        raise UserError("model.batch_invariant", problem, fix="use trainer.accelerator: cpu, or batch_invariant: false")
    if sharding_of(trainer.strategy) is not None:
        name = type(trainer.strategy).__name__
        raise UserError(
            "model.batch_invariant",
            f"is true, but {name} gathers weights around modules in ways that were not compared",
            fix="use trainer.strategy: ddp or a single device, or batch_invariant: false",
        )
    if not isinstance(data.rollouts.local(), GroupedSampler):
        name = type(data.rollouts).__name__
        raise UserError(
            "model.batch_invariant",
            f"is true, but {name} samples by other code, which rounds log-probabilities otherwise",
            fix="use data.rollouts: GroupedSampler, or batch_invariant: false",
        )


def _check_ahead(data: PromptDataModule, module: RunModule, trainer: Trainer) -> None:
    _check_ahead_of_shards(data, trainer)
    if module.old_policy.refresh_every > 1:
        raise UserError(
            "model.old_policy.refresh_every",
            f"is {module.old_policy.refresh_every}, but rollouts ahead of training come from copies of the newest "
            "weights, not from a snapshot",
            fix="use refresh_every: 1, or data.max_staleness: 0",
        )
    if module.objective.correction == "none":
        log.warning(
            "rollouts are %d iterations older than the policy that trains on them, and nothing corrects for it: "
            "consider model.objective.correction: sequence",
            data.settings.max_staleness,
        )


def _check_ahead_of_shards(data: PromptDataModule, trainer: Trainer) -> None:
    if has_whole_weights(trainer.strategy):
        return
    ahead = data.settings.max_staleness
    strategy = type(trainer.strategy).__name__
    if sharding_of(trainer.strategy) is None or not data.rollouts.keeps_weights:
        raise UserError(
            "data.max_staleness",
            f"is {ahead}, but no rank has whole weights under {strategy}, and {type(data.rollouts).__name__} samples "
            "from those of this process",
            fix="sample on servers (data.rollouts: VLLMServer), use a single device or ddp, or max_staleness: 0",
        )
    if ahead > 1:
        raise UserError(
            "data.max_staleness",
            f"is {ahead}, but servers hold one version of the weights, and under {strategy} no rank keeps another: a "
            "second rollout ahead would only make training wait for the first one",
            fix="use max_staleness: 1 (all that sharded weights can overlap), or max_staleness: 0",
        )
