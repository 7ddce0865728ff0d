"""What an iteration draws on, checked before it does: rollout source, rewards, prompts and the model's context."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gspo_lightning.advantages.shaping import TurnCredit
from gspo_lightning.errors import UserError, did_you_mean
from gspo_lightning.experience.settings import ExperienceSettings
from gspo_lightning.rewards import EnvironmentReward, Reward
from gspo_lightning.rollouts import RolloutSource

__all__ = ["check_context", "check_share", "check_sources", "has_environment"]


def check_sources(
    settings: ExperienceSettings,
    rollouts: RolloutSource,
    rewards: Mapping[str, Reward],
    weights: Iterable[str],
    turn_credit: TurnCredit,
) -> None:
    """Source, rewards and settings go together.

    Raises:
        UserError: they do not.
    """
    if settings.partial and type(rollouts).extend is RolloutSource.extend:
        raise UserError(
            "data.prompts_in_flight",
            f"needs a rollout source that can go on with a response; {type(rollouts).__name__} cannot",
            fix="use GroupedSampler or VLLMServer, or 0 for no partial rollouts",
        )
    if not rewards:
        raise UserError("data.rewards", "is empty", fix="name at least one, for example rewards: {correct: ExactMatch}")
    for name in weights:
        if name not in rewards:
            raise UserError("data.reward_weights", f"{name!r} is no reward; {did_you_mean(name, rewards)}")
    paid = [name for name, reward in rewards.items() if isinstance(reward, EnvironmentReward)]
    if paid and not has_environment(rollouts):
        raise UserError(
            f"data.rewards.{paid[0]}",
            f"is what an environment pays, but {type(rollouts).__name__} talks with none",
            fix="set data.rollouts: {class_path: EnvironmentRollouts, init_args: {environment: ...}}",
        )
    if turn_credit == "turn" and not paid:
        raise UserError(
            "data.turn_credit",
            "is 'turn', but no reward says what a turn earned",
            fix="add EnvironmentReward to data.rewards, or set turn_credit: conversation",
        )


def has_environment(source: object) -> bool:
    """Whether a rollout source, or one that it asks, talks with an environment."""
    return source is not None and (hasattr(source, "environment") or has_environment(getattr(source, "source", None)))


def check_share(field: str, prompts: int, ranks: int) -> None:
    """Every rank has a prompt to answer.

    Raises:
        UserError: one has none.
    """
    if prompts < ranks:
        what = f"holds {prompts} prompts for {ranks} ranks"
        raise UserError(field, what, fix="give more prompts, or use fewer devices")


def check_context(longest: int, limit: int | None) -> None:
    """Prompt and response fit into the positions the model was built for (``limit``, if its config says so).

    Raises:
        UserError: they do not.
    """
    if limit is not None and longest > limit:
        raise UserError(
            "data.max_response_tokens",
            f"max_prompt_tokens + max_response_tokens = {longest}, but the model was built for {limit} positions",
            fix=f"lower them to {limit} together",
        )
