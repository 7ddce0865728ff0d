"""Everything that is verified before the first rollout: one check, one rule; each says field, value, rule and fix.

Only attributes are read here; nothing is imported from the rooms below.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch

from gspo_lightning.advantages.base import try_advantages
from gspo_lightning.errors import UserError, did_you_mean
from gspo_lightning.objectives.trial import try_objective
from gspo_lightning.policy.policy import Policy
from gspo_lightning.prompts.specials import check_turn_end
from gspo_lightning.rollouts import RolloutSource
from gspo_lightning.strategies.checks import check_strategy
from gspo_lightning.training.trainer_checks import check_trainer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightning.pytorch import Trainer

    from gspo_lightning.policy.policy import Policy
    from gspo_lightning.training.data import PromptDataModule
    from gspo_lightning.training.module import GSPOModule
    from gspo_lightning.types import Prompt, SamplingParams

__all__ = [
    "check_context",
    "check_data_settings",
    "check_device",
    "check_precision",
    "check_prompts",
    "check_ranks",
    "check_run",
    "check_sampling",
    "check_share",
    "has_environment",
]

log = logging.getLogger(__name__)

_NOT_NEUTRAL = (
    "temperature", "top_p", "top_k", "min_p", "typical_p", "repetition_penalty", "no_repeat_ngram_size",
    "min_new_tokens", "bad_words_ids", "suppress_tokens",
)  # fmt: skip
"""Of a generation config: what would make the sampled distribution another than the policy's."""


def check_data_settings(data: PromptDataModule) -> None:
    """Rules that need nothing but the settings of the data module."""
    positive = (
        "prompts_per_rollout", "minibatches_per_rollout", "epochs_per_rollout", "max_tokens_per_micro_batch",
        "max_prompt_tokens", "max_response_tokens", "group_size",
    )  # fmt: skip
    for name in positive:
        value = getattr(data, name)
        if value < 1:
            raise UserError(f"data.{name}", f"is {value}; it must be at least 1")
    _check_groups(data)
    _check_flight(data)
    _check_rewards(data)
    _check_evaluation(data)
    if data.kl_in_reward < 0:
        raise UserError("data.kl_in_reward", f"is {data.kl_in_reward}; it must be 0 or above")
    if data.temperature <= 0:
        raise UserError(
            "data.temperature",
            f"is {data.temperature}; training rollouts must be sampled, so it must be above 0",
            fix="use 1.0; greedy decoding belongs into data.evaluation.temperature",
        )
    if (longest := data.max_prompt_tokens + data.max_response_tokens) > data.max_tokens_per_micro_batch:
        raise UserError(
            "data.max_tokens_per_micro_batch",
            f"is {data.max_tokens_per_micro_batch}, but a sequence may have {data.max_prompt_tokens} + "
            f"{data.max_response_tokens} = {longest} tokens (max_prompt_tokens + max_response_tokens)",
            fix=f"use at least {longest}",
        )


def _check_groups(data: PromptDataModule) -> None:
    least = data.advantages.min_group_size
    if data.group_size < least:
        raise UserError(
            "data.group_size",
            f"is {data.group_size}, but {type(data.advantages).__name__} compares the responses of a group",
            fix=f"use at least {least}, or other data.advantages",
        )
    try_advantages(data.advantages, data.group_size)
    prompts, cuts = data.prompts_per_rollout, data.minibatches_per_rollout
    if prompts % cuts:
        below, above = prompts - prompts % cuts, prompts + cuts - prompts % cuts
        near = f"{below} or {above}" if below else str(above)
        raise UserError(
            "data.prompts_per_rollout",
            f"{prompts} prompts x {data.group_size} responses cannot be cut into {cuts} mini-batches of whole groups",
            fix=f"use {near} prompts, or a divisor of {prompts} for data.minibatches_per_rollout",
        )


def _check_flight(data: PromptDataModule) -> None:
    for name in ("prompts_in_flight", "max_carry", "max_staleness"):
        if getattr(data, name) < 0:
            raise UserError(f"data.{name}", f"is {getattr(data, name)}; it must be 0 or above")
    flying, prompts = data.prompts_in_flight, data.prompts_per_rollout
    if flying and flying < prompts:
        raise UserError(
            "data.prompts_in_flight",
            f"is {flying}, fewer than data.prompts_per_rollout = {prompts}",
            fix=f"use more than {prompts}, or 0 for no partial rollouts",
        )
    if flying > prompts:
        for name, value in (("resample_dead_groups", data.resample_dead_groups), ("max_staleness", data.max_staleness)):
            if value:
                raise UserError(f"data.{name}", "cannot be joined with partial rollouts (data.prompts_in_flight)")
        if type(data.rollouts).extend is RolloutSource.extend:
            raise UserError(
                "data.prompts_in_flight",
                f"needs a rollout source that can go on with a response; {type(data.rollouts).__name__} cannot",
                fix="use GroupedSampler or VLLMServer, or 0 for no partial rollouts",
            )
    if data.max_staleness and data.resample_dead_groups:
        raise UserError("data.resample_dead_groups", "cannot be joined with asynchronous rollouts (data.max_staleness)")


def _check_rewards(data: PromptDataModule) -> None:
    if not data.rewards:
        raise UserError("data.rewards", "is empty", fix="name at least one, for example rewards: {correct: ExactMatch}")
    for name in data.reward_weights or {}:
        if name not in data.rewards:
            raise UserError("data.reward_weights", f"{name!r} is no reward; {did_you_mean(name, data.rewards)}")
    if data.environment_rewards and not has_environment(data.rollouts):
        raise UserError(
            f"data.rewards.{data.environment_rewards[0]}",
            f"is what an environment pays, but {type(data.rollouts).__name__} talks with none",
            fix="set data.rollouts: {class_path: EnvironmentRollouts, init_args: {environment: ...}}",
        )
    if data.turn_credit == "turn" and data.shaping.turn_reward is None:
        raise UserError(
            "data.turn_credit",
            "is 'turn', but no reward says what a turn earned",
            fix="add EnvironmentReward to data.rewards, or set turn_credit: conversation",
        )
    if (name := data.accuracy_reward) not in data.rewards:
        raise UserError("data.evaluation.accuracy_reward", f"{name!r} is no reward; {did_you_mean(name, data.rewards)}")


def has_environment(source: object) -> bool:
    """Whether a rollout source, or one that it asks, talks with an environment."""
    return source is not None and (hasattr(source, "environment") or has_environment(getattr(source, "source", None)))


def _check_evaluation(data: PromptDataModule) -> None:
    chosen = data.evaluation
    if chosen.samples < 1:
        raise UserError("data.evaluation.samples", f"is {chosen.samples}; it must be at least 1")
    if chosen.temperature < 0:
        raise UserError("data.evaluation.temperature", f"is {chosen.temperature}; it must be 0 (greedy) or above")
    if chosen.samples > 1 and chosen.temperature == 0:
        raise UserError(
            "data.evaluation.samples",
            f"is {chosen.samples}, but greedy decoding gives the same response every time",
            fix="set data.evaluation.temperature above 0, or samples: 1",
        )
    for k in chosen.pass_at:
        if not 1 <= k <= chosen.samples:
            raise UserError("data.evaluation.pass_at", f"pass@{k} needs between 1 and samples = {chosen.samples}")


def check_run(data: PromptDataModule, module: GSPOModule, trainer: Trainer) -> None:
    """Rules that join the settings of trainer, model and data."""
    try_objective(module.objective)
    reason = module.objective.unusual_clip()
    if reason and not module.allow_unusual_clip:
        raise UserError(
            "model.objective", reason, fix="correct the range, or say model.allow_unusual_clip: true if you mean it"
        )
    if (getattr(module.objective, "by", None) == "given") != bool(module.segment_delimiters):
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
            fix="use data.rollouts: GroupedSampler, or model.routing_replay: R2",
        )
    check_trainer(data, module, trainer)
    check_precision(str(trainer.precision))
    check_device(str(trainer.precision), module.settings.dtype, trainer.strategy.root_device)
    check_strategy(trainer.strategy)
    check_ranks(data, trainer.world_size)
    _check_adapters(module, trainer)
    if data.max_staleness:
        _check_ahead(data, module, trainer)
    if data.updates_per_iteration == 1:
        log.warning(
            "one update per rollout batch: the policy equals the old policy at every update, so no ratio can leave 1 "
            "and clipping cannot bind (data.minibatches_per_rollout: 4 is the GSPO paper's setting)"
        )


def check_sampling(policy: Policy, sampling: SamplingParams) -> None:
    """Say where the model's own files mean another sampling or another end than training rollouts have."""
    config = getattr(policy.model, "generation_config", None)
    asked = config.to_diff_dict() if config is not None else {}
    unused = ", ".join(f"{name} {asked[name]}" for name in _NOT_NEUTRAL if name in asked)
    if unused:
        log.info(
            "the model's generation_config (%s) is not used: training samples what the policy says, at temperature %g; "
            "evaluations as data.evaluation says",
            unused, sampling.temperature,
        )  # fmt: skip
    check_turn_end(policy.tokenizer, sampling.stop_token_ids)


def _check_adapters(module: GSPOModule, trainer: Trainer) -> None:
    lora = module.settings.lora
    if lora is not None and lora.base == "4bit" and "FSDP" in type(trainer.strategy).__name__:
        raise UserError(
            "model.lora.base",
            "is 4bit, but packed weights are not numbers that can be cut into shards and put together again",
            fix="use trainer.strategy: ddp (packed weights are small), or base: as_loaded",
        )


def _check_ahead(data: PromptDataModule, module: GSPOModule, trainer: Trainer) -> None:
    if (strategy := type(trainer.strategy).__name__) not in ("SingleDeviceStrategy", "DDPStrategy"):
        raise UserError(
            "data.max_staleness",
            f"is {data.max_staleness}, but {strategy} has no whole copy of the weights to give",
            fix="use a single device or ddp, or max_staleness: 0",
        )
    if (every := module.old_policy.refresh_every) > 1:
        raise UserError(
            "model.old_policy.refresh_every",
            f"is {every}, but rollouts ahead of training come from copies of the newest weights, not from a snapshot",
            fix="use refresh_every: 1, or data.max_staleness: 0",
        )
    if module.objective.correction == "none":
        log.warning(
            "rollouts are %d iterations older than the policy that trains on them, and nothing corrects for it: "
            "consider model.objective.correction: sequence",
            data.max_staleness,
        )


def check_ranks(data: PromptDataModule, world: int) -> None:
    """Every rank gets the same number of groups of every mini-batch."""
    cut = data.prompts_per_rollout // data.minibatches_per_rollout
    if cut % world:
        raise UserError(
            "data.prompts_per_rollout",
            f"a mini-batch of {cut} groups cannot be dealt evenly to {world} ranks",
            fix=f"use a multiple of {world * data.minibatches_per_rollout}",
        )
    if data.prompts_in_flight % world:
        raise UserError("data.prompts_in_flight", f"is {data.prompts_in_flight}, which {world} ranks cannot share")


def check_share(field: str, prompts: int, ranks: int) -> None:
    """Every rank has a prompt to answer."""
    if prompts < ranks:
        what = f"holds {prompts} prompts for {ranks} ranks"
        raise UserError(field, what, fix="give more prompts, or use fewer devices")


def check_precision(precision: str) -> None:
    """Refuse float16 (on a CPU Lightning would silently take another one) and what rounds log-probabilities.

    float64 would not be float64 from end to end: samplers draw, and rollouts keep log-probabilities, in float32.
    """
    if precision == "bf16-true":
        raise UserError(
            "trainer.precision",
            "'bf16-true' would round old log-probabilities and advantages to bfloat16 on their way to the model",
            fix="use bf16-mixed (float32 masters), or model.dtype: bfloat16 with 32-true",
        )
    if precision in ("64", "64-true"):
        raise UserError(
            "trainer.precision",
            f"{precision!r} is more than rollouts keep: their log-probabilities are float32",
            fix="use 32-true; sums, norms and the reductions of statistics are float64 already",
        )
    if precision.startswith("transformer-engine"):
        raise UserError(
            "trainer.precision",
            f"{precision!r} computes in 8 bits, whose rounding is larger than any clip range of sequences",
            fix="use bf16-mixed or 32-true",
        )
    if precision in ("16", "16-mixed", "16-true"):
        raise UserError(
            "trainer.precision",
            f"{precision!r} cannot hold log-ratios of the size of the clip range",
            fix="use bf16-mixed or 32-true",
        )


def check_prompts(data: PromptDataModule, prompts: Sequence[Prompt]) -> None:
    """The training set holds at least one rollout batch, so that no iteration sees a prompt twice."""
    if len(prompts) < data.prompts_per_rollout:
        raise UserError(
            "data.train",
            f"holds {len(prompts)} usable prompts, fewer than one rollout batch "
            f"(data.prompts_per_rollout = {data.prompts_per_rollout})",
            fix="give more prompts, or lower data.prompts_per_rollout",
        )
    if len(prompts) < data.prompts_in_flight:
        raise UserError(
            "data.prompts_in_flight",
            f"is {data.prompts_in_flight}, but data.train holds {len(prompts)} usable prompts",
            fix="give more prompts, or lower it",
        )


def check_context(data: PromptDataModule, limit: int | None) -> None:
    """Prompt and response fit into the positions the model was built for (``limit``, if its config says so)."""
    if limit is not None and (wanted := data.longest) > limit:
        raise UserError(
            "data.max_response_tokens",
            f"max_prompt_tokens + max_response_tokens = {wanted}, but the model was built for {limit} positions",
            fix=f"lower them to {limit} together",
        )


def check_device(precision: str, dtype: str, device: torch.device) -> None:
    """Refuse bfloat16 on a GPU without it.

    Raises:
        UserError: the hardware emulates it or cannot do it at all.
    """
    if "bf16" not in precision and dtype != "bfloat16":
        return
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 0):
        raise UserError(
            "trainer.precision",
            f"is {precision!r}, model.dtype {dtype!r}, but {torch.cuda.get_device_name(device)} has no bfloat16",
            fix="use 32-true with model.dtype: float32, or a GPU of the Ampere generation or later",
        )
