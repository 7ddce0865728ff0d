"""Checks before an iteration: rollout source, rewards, prompts and the model's context."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from gspo_lightning.core.errors import UserError, did_you_mean
from gspo_lightning.core.thinking import context_opens_thought
from gspo_lightning.data.prompts.curricula import Curriculum, Uniform
from gspo_lightning.data.prompts.mixed_order import MixedOrder
from gspo_lightning.data.prompts.order import PromptOrder
from gspo_lightning.data.prompts.sets import PromptSets
from gspo_lightning.loop.advantages.shaping import TurnCredit
from gspo_lightning.loop.experience.generate_and_score import columns_of
from gspo_lightning.loop.experience.partial import PartialRollouts
from gspo_lightning.loop.experience.retrying import RetryingSource
from gspo_lightning.loop.experience.settings import ExperienceSettings
from gspo_lightning.policy.vision.image_processor import image_processor_of
from gspo_lightning.rewards import EnvironmentReward, RewardRunner
from gspo_lightning.rewards.by_record import Judge, Judges
from gspo_lightning.rewards.canned import examined
from gspo_lightning.rollouts import RolloutSource

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

log = logging.getLogger(__name__)

_IN_FLIGHT = "data.rollouts.weights_in_flight"
_LOOKED_AT = 256
"""Number of prompts, from all over a set, that are checked for pictures."""


def check_sources(
    settings: ExperienceSettings,
    rollouts: RolloutSource,
    rewards: Mapping[str, Judge],
    weights: Iterable[str],
    turn_credit: TurnCredit,
) -> None:
    """Check that source, rewards and settings fit together.

    Raises:
        UserError: they do not.
    """
    if settings.partial and type(rollouts).extend is RolloutSource.extend:
        raise UserError(
            "data.prompts_in_flight",
            f"needs a rollout source that can continue a response; {type(rollouts).__name__} cannot",
            fix="use GroupedSampler or VLLMServer, or 0 for no partial rollouts",
        )
    if any(source.updates_in_flight for source in _behind(rollouts)):
        if not rollouts.updates_in_flight:
            raise UserError(
                _IN_FLIGHT,
                f"is true behind {type(rollouts).__name__}, which does not say which weights sampled a token",
                fix="leave it out, or use VLLMServer itself as data.rollouts",
            )
        if not settings.max_staleness:
            raise UserError(
                _IN_FLIGHT,
                "is true, but nothing is sampled while the policy is trained",
                fix="set data.max_staleness: 1, or leave it out",
            )
    if not rewards and settings.resample_dead_groups:
        raise UserError(
            "data.resample_dead_groups",
            "needs data.rewards: without rewards every group is dead",
            fix="use 0, or name a reward",
        )
    for name in weights:
        if name not in rewards:
            raise UserError("data.reward_weights", f"{name!r} is not a reward; {did_you_mean(name, rewards)}")
    single_rewards = Judges(rewards).single
    of_environment = [name for name, reward in single_rewards.items() if isinstance(reward, EnvironmentReward)]
    if of_environment and not has_environment(rollouts):
        raise UserError(
            f"data.rewards.{of_environment[0]}",
            f"takes the reward of an environment, but {type(rollouts).__name__} has none",
            fix="set data.rollouts: {class_path: EnvironmentRollouts, init_args: {environment: ...}}",
        )
    if turn_credit == "turn" and not of_environment:
        raise UserError(
            "data.turn_credit",
            "is 'turn', but no reward scores single turns",
            fix="add EnvironmentReward to data.rewards, or set turn_credit: conversation",
        )


def check_reading(tokenizer: PreTrainedTokenizerBase, sources: Iterable[RolloutSource]) -> None:
    """Check that sources of a policy that reads pictures show them and never sample their placeholders.

    Raises:
        UserError: a source does not.
    """
    for source in sources:
        if image_processor_of(tokenizer) is not None and not source.reads_pictures:
            raise UserError(
                "data.rollouts",
                f"is {type(source).__name__}, which does not show pictures to a policy",
                fix="with a model that reads pictures use GroupedSampler, TransformersGenerate, VLLMServer, "
                "VLLMEngine, EnvironmentRollouts or Recorded",
            )


def check_shown(tokenizer: PreTrainedTokenizerBase, sets: PromptSets, sources: Iterable[RolloutSource]) -> None:
    """Check that sources can show prompts with pictures to this model family.

    Raises:
        UserError: a source cannot.
    """
    image_processor = image_processor_of(tokenizer)
    if image_processor is None:
        return
    unable = [source for source in sources if image_processor.kind not in source.picture_families]
    if unable and any(prompt.media for prompt in sets.examples(_LOOKED_AT)):
        raise UserError(
            "data.rollouts",
            f"is {type(unable[0]).__name__}, which does not show pictures to models of the family "
            f"{image_processor.kind!r}",
            fix="use GroupedSampler or TransformersGenerate, or prompts without pictures",
        )


def check_rewards(
    runner: RewardRunner, sets: PromptSets, rollouts: RolloutSource, tokenizer: PreTrainedTokenizerBase
) -> None:
    """Check that every reward scores canned answers to a record it applies to, and every checked record has a reward.

    Args:
        runner: runs the rewards.
        sets: the prompt sets, read.
        rollouts: the source of responses.
        tokenizer: of the policy.

    Raises:
        UserError: a reward that cannot score, or a record without one.
    """
    examples = sets.examples(examined(runner.rewards))
    others = [(columns_of(prompt, runner.judges), prompt.text) for prompt in examples]
    checked = [prompts[0] for prompts in sets.read.values()]
    covered = {tuple(runner.judges.applying(prompt.columns)) for prompt in checked}
    for prompt in examples:  # one more for each set of applying rewards that the first records lack
        applying = tuple(runner.judges.applying(prompt.columns))
        if applying not in covered:
            covered.add(applying)
            checked.append(prompt)
    for prompt in checked:
        runner.check(columns_of(prompt, runner.judges), prompt.text, others, conversation=has_environment(rollouts))
    first = checked[0]
    if os.environ.get("LOCAL_RANK", "0") == "0" and context_opens_thought(tokenizer, first.token_ids):
        for name in runner.demand_openings(columns_of(first, runner.judges), first.text):
            log.warning(
                "rewards.%s pays less for a completion without <think>, but the chat template has written it at the "
                "end of the prompt, so that no completion has it: judge what comes after it (r'.*</think>.*')", name
            )  # fmt: skip


def training_order(sets: PromptSets, settings: ExperienceSettings, curriculum: Curriculum | None) -> PromptOrder:
    """Return the order of the training prompts: each once per pass, by weight, by source shares, or by a curriculum.

    Raises:
        UserError: there are too few prompts, or the curriculum cannot work with these settings.
    """
    train = sets.read["train"]
    parts = sets.parts("train")
    uniform = isinstance(curriculum, Uniform | None)
    settings.check_prompts(len(train))
    sizes = (settings.prompts_per_rollout, settings.minibatches_per_rollout, settings.seed)
    weights = sets.weights("train")
    if weights is not None and weights.min() == weights.max():
        weights = None  # equal weights are none
    if uniform and weights is None and len(parts) == 1 and not parts[0].name:
        return PromptOrder(train, *sizes)
    if not uniform and settings.partial:
        raise UserError(
            "data.curriculum",
            "cannot be combined with partial rollouts (data.prompts_in_flight), which take prompts in a fixed order",
            fix="use one of the two",
        )
    if weights is not None and not uniform:
        raise UserError(
            "data.curriculum",
            "chooses prompts itself, and records have the column 'weight', which says how often each is drawn",
            fix="use one of the two; to keep the column without its meaning, rename it: data.columns: {own_weight: "
            "weight}",
        )
    difficulty = None if uniform else sets.difficulty("train")
    order = MixedOrder(train, *sizes, parts, curriculum, difficulty, weights)
    if weights is not None:
        span = f"{weights.min():g} to {weights.max():g}"
        log.info("data.train: prompts are drawn in proportion to their column 'weight' (%s)", span)
    return order


def partial_rollouts(
    source: RolloutSource | RetryingSource, order: PromptOrder, settings: ExperienceSettings, ranks: int
) -> PartialRollouts | None:
    """Return rollouts that continue over iterations, if the settings ask for them."""
    if not settings.partial:
        return None
    return PartialRollouts(
        source, order.at, in_flight=settings.prompts_in_flight // ranks, groups=settings.prompts_per_rollout // ranks,
        max_carry=settings.max_carry,
    )  # fmt: skip


def _behind(source: object) -> Iterator[RolloutSource]:
    """Yield a source, and the sources that it wraps."""
    while isinstance(source, RolloutSource):
        yield source
        source = getattr(source, "source", None)


def has_environment(source: object) -> bool:
    """True if a rollout source, or one that it wraps, talks to an environment or runs an agent."""
    speaks = hasattr(source, "environment") or hasattr(source, "agent")
    return source is not None and (speaks or has_environment(getattr(source, "source", None)))


def read_sets(
    sets: PromptSets, stage: str, tokenizer: PreTrainedTokenizerBase, limit: int | None, ranks: int, *, graded: bool
) -> None:
    """Read the prompts of a stage (``fit``, ``validate``, ``test``, ``predict``), at least one for every rank.

    Args:
        sets: prompt sets of all stages.
        stage: stage of the run.
        tokenizer: of the model.
        limit: number of held-out prompts to use, the first ones.
        ranks: ranks of the run.
        graded: there are rewards; without them only training is possible, with nothing but training prompts.

    Raises:
        UserError: prompts cannot be read, held-out answers have no reward, or a rank has none of the first ``limit``
            held-out ones.
    """
    if not graded and (stage != "fit" or sets.sources["val"] is not None):
        raise UserError(
            "data.rewards",
            "is empty, so nothing judges the answers to held-out prompts",
            fix="name one (with data.reward_weights: {correct: 0} it only measures), or set data.val: null to train",
        )
    names = {"fit": ("train", "val"), "validate": ("val",)}.get(stage, (stage,))
    for name in names:
        sets.load(name, tokenizer)
        prompts = len(sets.first(name, limit))
        if name in sets.read and name != "train" and prompts < ranks:
            raise UserError(
                f"data.{name}",
                f"holds {prompts} prompts for {ranks} ranks",
                fix="give more prompts, or use fewer devices",
            )


def check_context(longest: int, limit: int | None) -> None:
    """Check that prompt and response fit into the model's positions (``limit``, if its config states it).

    Raises:
        UserError: they do not.
    """
    if limit is not None and longest > limit:
        raise UserError(
            "data.max_response_tokens",
            f"max_prompt_tokens + max_response_tokens = {longest}, but the model was built for {limit} positions",
            fix=f"lower them to {limit} together",
        )
