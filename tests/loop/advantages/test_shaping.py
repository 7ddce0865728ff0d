"""From scores to advantages, by hand."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.types import FinishReason, Prompt, Rollout
from gspo_lightning.loop.advantages.advantages import Advantages
from gspo_lightning.loop.advantages.assign import assign_advantages
from gspo_lightning.loop.advantages.shaping import CombineRewards, Shaping, is_dead, mask_truncated
from gspo_lightning.loop.advantages.within_groups import BatchNormalised, GroupMean, GroupNormalised
from gspo_lightning.loop.experience.generate_and_score import Groups
from gspo_lightning.loop.experience.sampling import resample
from gspo_lightning.policy.packing.batches import cut_micro_batches, filler, make_micro_batch
from gspo_lightning.rewards import ExactMatch, Reward
from gspo_lightning.rollouts.recording.recorded import Recorded
from gspo_lightning.training.data import PromptDataModule

CPU = torch.device("cpu")


def rollout(reward: float | None, *, prompt: int = 0, truncated: bool = False, **parts: float | None) -> Rollout:
    ids = torch.tensor([5, 6])
    reason = FinishReason.LENGTH if truncated else FinishReason.STOP
    made = Rollout(Prompt(prompt, "p", (3,)), 0, ids, torch.zeros(2), torch.ones(2, dtype=torch.bool), reason, 0)
    made.reward, made.reward_parts = reward, dict(parts) or {"r": reward}
    return made


def advantages(group: Sequence[Rollout]) -> list[float]:
    return [r.advantage for r in group]


def test_weighted_sum_compares_within_the_group() -> None:
    groups = [[rollout(1.0), rollout(0.0), rollout(0.5)], [rollout(3.0), rollout(3.0), rollout(0.0)]]
    dead = assign_advantages(groups, GroupMean(), Shaping(), CPU)
    assert advantages(groups[0]) == [0.5, -0.5, 0.0]
    assert advantages(groups[1]) == [1.0, 1.0, -2.0]
    assert dead == [False, False]


def test_missing_and_masked_take_no_part_anywhere() -> None:
    group = [rollout(1.0), rollout(0.0), rollout(None), rollout(0.25, truncated=True)]
    shaping = Shaping(truncated="mask")
    mask_truncated(group, shaping)
    assign_advantages([group], GroupMean(), shaping, CPU)
    assert advantages(group) == [0.5, -0.5, 0.0, 0.0]
    assert make_micro_batch(group).response_mask.any(-1).tolist() == [True, True, False, False]
    assert group[3].reward == 0.25  # the raw reward stays


def test_penalty_is_subtracted_for_the_comparison_only() -> None:
    group = [rollout(1.0, truncated=True), rollout(1.0)]
    assign_advantages([group], GroupMean(), Shaping(truncated="penalise", truncation_penalty=0.5), CPU)
    assert advantages(group) == [-0.25, 0.25]
    assert [r.reward for r in group] == [1.0, 1.0]


def test_separate_normalisation_keeps_a_small_reward_audible() -> None:
    group = [rollout(None, a=a, b=b) for b in (0.0, 1.0) for a in (0.0, 100.0)]
    for r in group:
        r.reward = sum(v or 0.0 for v in r.reward_parts.values())
    shaping = Shaping(combine="normalised_separately")
    assign_advantages([group], GroupNormalised(), shaping, CPU)
    # both columns become -c, c: the sums are -2c, 0, 0, 2c, standardised by their own spread
    spread = torch.tensor([-2.0, 0.0, 0.0, 2.0], dtype=torch.float64)
    assert advantages(group) == pytest.approx((spread / spread.std()).tolist(), abs=1e-5)


def test_weights_of_zero_leave_a_part_out() -> None:
    group = [rollout(0.0, a=0.0, b=5.0), rollout(1.0, a=1.0, b=None)]
    shaping = Shaping(combine="normalised_separately", weights={"b": 0.0})
    assign_advantages([group], GroupNormalised(), shaping, CPU)
    assert advantages(group)[0] < 0 < advantages(group)[1]


@pytest.mark.parametrize(
    ("rewards", "dead"),
    [([1.0, 1.0], True), ([0.1 + 0.2, 0.3], True), ([None, 1.0], True), ([None, None], True), ([0.0, 1.0], False)],
)
def test_dead_is_equality_of_what_takes_part(rewards: list[float | None], dead: bool) -> None:
    assert is_dead([rollout(r) for r in rewards], Shaping()) is dead


def test_differences_that_cancel_are_dead_too() -> None:
    """A penalty, or what earlier turns earned, is taken from rewards of the same size: what is left is rounding."""
    total = 0.1 + 0.2
    cut = [rollout(total, truncated=True), rollout(0.0)]
    shaping = Shaping(truncated="penalise", truncation_penalty=0.3)
    assert is_dead(cut, shaping)
    assert assign_advantages([cut], GroupNormalised(), shaping, CPU) == [True]
    assert advantages(cut) == [0.0, 0.0]
    turns = [rollout(total), rollout(0.0), rollout(1.0)]
    for r, earned in zip(turns, (0.3, 0.0, 0.0), strict=True):
        r.turn_ends, r.turn_rewards = (1, 2), (earned, 0.0)
    by_turn = Shaping(turn_reward="r")
    assert by_turn.later_columns(turns[:2], ["r"], 1)[0].tolist() == [0.0, 0.0]


def test_rewards_normalised_separately_that_cancel_are_no_signal() -> None:
    """The second reward is the first one turned round: 1 and 0.3 here, the rounding of both is not the same."""
    group = [rollout(0.0, a=a, b=b) for a, b in ((0.0, 0.3), (1.0, 0.1 + 0.2 - 0.3), (1.0, 0.0))]
    shaping = Shaping(combine="normalised_separately")
    assert assign_advantages([group], GroupNormalised(eps=0.0), shaping, CPU) == [False]
    assert advantages(group) == [0.0] * 3


def test_a_step_whose_score_differs_by_rounding_is_no_other_step() -> None:
    group = [rollout(0.3), rollout(0.3)]
    for r, score in zip(group, (0.3, 0.1 + 0.2), strict=True):
        r.steps = {"r": ((1, score), (2, 0.3))}
    assert is_dead(group, Shaping())
    group[1].steps = {"r": ((1, 0.4), (2, 0.3))}
    assert not is_dead(group, Shaping())


def penalised(kl: Sequence[float], coef: float, cut: Sequence[bool] = (False,) * 4) -> list[Rollout]:
    """Rewards 1, 0, 1, 0 with a penalty of ``coef`` for a nat."""
    group = [rollout(r, truncated=c) for r, c in zip((1.0, 0.0, 1.0, 0.0), cut, strict=True)]
    for r, nats in zip(group, kl, strict=True):
        r.kl_penalty = coef * nats
    return group


@pytest.mark.parametrize("coef", [0.001, 10.0])
def test_a_penalty_beside_rewards_normalised_separately_has_the_size_of_its_coefficient(coef: float) -> None:
    """The reward is worth +-sqrt(3) / 2 within its group, whose spread is 1: standardising changes nothing more."""
    group = penalised((3.0, 1.0, 2.0, 0.0), coef)
    assign_advantages([group], GroupNormalised(), Shaping(combine="normalised_separately"), CPU)
    reward = [0.75**0.5, -(0.75**0.5)] * 2
    wanted = [a - coef * (kl - 1.5) for a, kl in zip(reward, (3.0, 1.0, 2.0, 0.0), strict=True)]
    assert advantages(group) == pytest.approx(wanted, abs=1e-5)


def test_truncation_and_kl_are_penalised_apart() -> None:
    """Only their sum would be constant: a penalty must not be cancelled by another one's scale."""
    group = penalised((1.0, 0.0, 0.0, 1.0), 0.25, cut=(False, True, True, False))
    shaping = Shaping(truncated="penalise", truncation_penalty=0.5, combine="normalised_separately")
    assign_advantages([group], GroupNormalised(), shaping, CPU)
    off = [0.25 * kl + 0.5 * cut - 0.375 for kl, cut in ((1, 0), (0, 1), (0, 1), (1, 0))]
    reward = [0.75**0.5, -(0.75**0.5)] * 2
    assert advantages(group) == pytest.approx([a - b for a, b in zip(reward, off, strict=True)], abs=1e-5)


def test_a_penalty_without_groups_is_compared_in_the_whole_batch() -> None:
    groups = [[r] for r in penalised((3.0, 1.0, 2.0, 0.0), 0.1)]
    for i, (r,) in enumerate(groups):
        r.prompt = Prompt(i, "p", (3,))
    assign_advantages(groups, BatchNormalised(), Shaping(combine="normalised_separately"), CPU)
    reward = [0.75**0.5, -(0.75**0.5)] * 2
    wanted = [a - 0.1 * (kl - 1.5) for a, kl in zip(reward, (3.0, 1.0, 2.0, 0.0), strict=True)]
    assert [g[0].advantage for g in groups] == pytest.approx(wanted, abs=1e-5)


def test_penalties_of_missing_samples_count_nowhere() -> None:
    group = [*penalised((3.0, 1.0, 2.0, 0.0), 0.1), rollout(None, a=None)]
    group[4].kl_penalty = 99.0
    assign_advantages([group], GroupNormalised(), Shaping(combine="normalised_separately", rewards=("r",)), CPU)
    alone = penalised((3.0, 1.0, 2.0, 0.0), 0.1)
    assign_advantages([alone], GroupNormalised(), Shaping(combine="normalised_separately"), CPU)
    assert advantages(group) == [*advantages(alone), 0.0]


@pytest.mark.parametrize("combine", ["weighted_sum", "normalised_separately"])
@pytest.mark.parametrize("compare", [GroupNormalised(), GroupMean()])
def test_a_group_of_equal_rewards_is_dead_whatever_its_kl(combine: CombineRewards, compare: Advantages) -> None:
    """KL to the reference differs by rounding alone, and a spread of rounding must not become one of 1."""
    dead = [rollout(1.0), rollout(1.0), rollout(1.0)]
    for r, noise in zip(dead, (1e-4, -2e-4, 3e-4), strict=True):
        r.kl_penalty = noise
    alive = [rollout(1.0), rollout(0.0), rollout(0.0)]
    shaping = Shaping(combine=combine)
    assert assign_advantages([dead, alive], compare, shaping, CPU) == [True, False]
    assert advantages(dead) == [0.0, 0.0, 0.0]
    assert advantages(alive)[0] > 0 > advantages(alive)[1]
    assert is_dead(dead, shaping)
    assert not is_dead(alive, shaping)


@pytest.mark.parametrize("combine", ["weighted_sum", "normalised_separately"])
def test_a_group_that_differs_in_truncation_alone_is_alive_where_that_is_penalised(combine: CombineRewards) -> None:
    group = [rollout(1.0, truncated=True), rollout(1.0)]
    shaping = Shaping(truncated="penalise", combine=combine)
    assert not is_dead(group, shaping)
    assert assign_advantages([group], GroupMean(), shaping, CPU) == [False]
    assert advantages(group) == [-0.25, 0.25]


def test_dead_fraction_over_columns() -> None:
    groups = [[rollout(0.0, a=0.0, b=1.0), rollout(0.0, a=0.0, b=2.0)], [rollout(0.0, a=1.0, b=1.0)] * 2]
    assert assign_advantages(groups, GroupNormalised(), Shaping(combine="normalised_separately"), CPU) == [False, True]


def test_resampling_replaces_dead_groups_and_stops_at_the_budget() -> None:
    alive, dead = [rollout(0.0), rollout(1.0)], [rollout(1.0), rollout(1.0)]
    asked: list[list[int]] = []
    supply = {10: dead, 11: alive, 12: dead}

    def sample(prompts: Sequence[Prompt]) -> tuple[Groups, dict[str, float]]:
        asked.append([p.id for p in prompts])
        return [list(supply[p.id]) for p in prompts], {"time/rollout_s": 1.0}

    groups = [list(alive), list(dead), list(dead)]
    seconds = resample(groups, sample, [Prompt(i, "p", (3,)) for i in (10, 11, 12)], Shaping())
    assert asked == [[10, 11], [12]]
    assert [is_dead(g, Shaping()) for g in groups] == [False, False, True]
    assert seconds == {"time/rollout_s": 2.0, "reward/resampled_groups": 1.0}


def test_negative_penalty_is_refused() -> None:
    with pytest.raises(UserError, match="truncation_penalty"):
        Shaping(truncation_penalty=-1.0)


def conversation(*earned: float, other: float = 0.0, reward: float | None = -1.0) -> Rollout:
    """Two tokens for every turn, one from the environment between two turns; ``other`` is another reward."""
    count = 3 * len(earned) - 1
    mask = torch.tensor([i % 3 != 2 for i in range(count)])
    ids = torch.arange(5, 5 + count)
    made = Rollout(Prompt(0, "p", (3,)), 0, ids, torch.zeros(count), mask, FinishReason.DONE, 0)
    made.turn_ends = tuple(3 * k + 2 for k in range(len(earned)))
    made.turn_rewards = earned
    made.reward = None if reward is None else 2.0 * sum(earned) + other
    made.reward_parts = {} if reward is None else {"env": sum(earned), "other": other}
    return made


BY_TURN = Shaping(weights={"env": 2.0}, turn_reward="env")


def by_token(rollout: Rollout) -> list[float]:
    assert rollout.token_advantages is not None
    return rollout.token_advantages.tolist()


def test_each_turn_is_judged_by_what_was_earned_from_it_on() -> None:
    """Returns from a turn on (env weighs 2): first 7, 3, 2; second 5, 1 (the third one had no second turn)."""
    group = [conversation(1.0, 2.0, other=1.0), conversation(1.0, 0.5), conversation(1.0)]
    assign_advantages([group], GroupMean(), BY_TURN, CPU)
    assert advantages(group) == [3.0, -1.0, -2.0]
    assert by_token(group[0]) == [3.0, 3.0, 0.0, 2.0, 2.0]
    assert by_token(group[1]) == [-1.0, -1.0, 0.0, -2.0, -2.0]
    assert by_token(group[2]) == [-2.0, -2.0]


def test_a_reward_at_the_end_judges_all_turns_alike() -> None:
    group = [conversation(0.0, 0.0, 1.0), conversation(0.0, 0.0, 0.0), conversation(0.0, 0.0, 0.0)]
    assign_advantages([group], GroupNormalised(), BY_TURN, CPU)
    for r in group:
        assert by_token(r) == pytest.approx([r.advantage * own for own in r.response_mask.tolist()])


def test_a_turn_that_nobody_else_has_reached_teaches_nothing() -> None:
    group = [conversation(0.0, 3.0), conversation(1.0), conversation(0.0)]
    assign_advantages([group], GroupMean(), BY_TURN, CPU)
    assert by_token(group[0])[3:] == [0.0, 0.0]
    assert by_token(group[0])[:2] == pytest.approx([group[0].advantage] * 2)


def test_missing_conversations_take_no_part_in_any_turn() -> None:
    group = [conversation(0.0, 1.0), conversation(0.0, 0.0), conversation(0.0, 9.0, reward=None)]
    assign_advantages([group], GroupMean(), BY_TURN, CPU)
    assert by_token(group[0]) == [1.0, 1.0, 0.0, 1.0, 1.0]
    assert by_token(group[2]) == [0.0] * 5


def test_rewards_compared_separately_lose_only_what_was_earned_before() -> None:
    """env: 3, 0 from the first turn on, 2, 0 from the second; other: 0, 1 from both; centred, weighed, standardised."""
    group = [conversation(1.0, 2.0, other=0.0), conversation(0.0, 0.0, other=1.0)]
    shaping = Shaping(combine="normalised_separately", weights={"env": 2.0}, turn_reward="env")
    assign_advantages([group], GroupMean(), shaping, CPU)
    first = torch.tensor([2 * 1.5 - 0.5, -2 * 1.5 + 0.5])
    second = torch.tensor([2 * 1.0 - 0.5, -2 * 1.0 + 0.5])
    for i, r in enumerate(group):
        for tokens, values in ((by_token(r)[:2], first), (by_token(r)[3:], second)):
            assert tokens == pytest.approx([float(values[i] / values.std())] * 2, rel=1e-5)


def test_advantages_of_turns_travel_to_the_tokens_of_a_micro_batch() -> None:
    group = [conversation(1.0, 2.0, other=1.0), conversation(1.0)]
    assign_advantages([group], GroupMean(), BY_TURN, CPU)
    batch = make_micro_batch(group)
    assert batch.advantages.tolist() == [by_token(group[0]), [*by_token(group[1]), 0.0, 0.0, 0.0]]
    assert batch.advantages.dtype == torch.float32
    assert [m.advantages.shape for m in cut_micro_batches(group, 6)] == [(1, 5), (1, 2)]
    assert filler(batch).advantages.shape == (1, 5)
    assert make_micro_batch([rollout(1.0)]).advantages.shape == (1,)


def test_recorded_verdicts_name_their_rewards_themselves() -> None:
    rewards: dict[str, Reward] = {"b": ExactMatch(), "a": ExactMatch()}
    combined = {"rewards": rewards, "combine_rewards": "normalised_separately"}
    assert PromptDataModule("x.jsonl", **combined).settings.shaping.rewards == ("b", "a")  # type: ignore[arg-type]
    source = Recorded("rollouts", rewards="recorded")
    shaping = PromptDataModule("x.jsonl", rollouts=source, **combined).settings.shaping  # type: ignore[arg-type]
    group = [rollout(1.0, other=1.0), rollout(0.0, other=0.0)]
    assign_advantages([group], GroupMean(), shaping, CPU)
    assert advantages(group) == pytest.approx([0.5**0.5, -(0.5**0.5)], rel=1e-5)


def by_record(prompt: int, a: float, b: float | None, source: str = "") -> Rollout:
    """Two rewards, of which the second does not apply where it is None."""
    made = rollout(a + (b or 0.0), prompt=prompt, a=a, b=b)
    made.reward_statuses = {"a": "ok", "b": "ok" if b is not None else "not_applicable"}
    made.prompt.columns["source"] = source  # type: ignore[index]
    return made


def test_separate_rewards_that_do_not_apply_leave_their_weight_to_the_others() -> None:
    """Group 0: +-.5 from each reward; group 1: +-.5 from the first, times 2. Standard deviation sqrt(4 / 3)."""
    groups = [[by_record(0, 1, 1.0), by_record(0, 0, 0.0)], [by_record(1, 1, None), by_record(1, 0, None)]]
    dead = assign_advantages(groups, GroupMean(), Shaping(combine="normalised_separately"), CPU)
    found = [value for group in groups for value in advantages(group)]
    assert found == pytest.approx([0.8660254, -0.8660254] * 2, abs=1e-5)
    assert dead == [False, False]


@pytest.mark.parametrize("combine", ["weighted_sum", "normalised_separately"])
def test_a_group_without_one_of_the_rewards_is_alive_by_the_others(combine: CombineRewards) -> None:
    shaping = Shaping(combine=combine)
    assert not is_dead([by_record(0, 1, None), by_record(0, 0, None)], shaping)
    assert is_dead([by_record(0, 1, None), by_record(0, 1, None)], shaping)
    assert shaping.share(by_record(0, 1, None)) == 2.0


def test_a_dead_group_is_replaced_by_one_of_its_own_source() -> None:
    def group(prompt: int, source: str, *rewards: float) -> list[Rollout]:
        return [by_record(prompt, reward, 0.0, source) for reward in rewards]

    def source(prompt: Prompt) -> object:
        return prompt.columns["source"]

    groups = [group(0, "a", 1, 0), group(1, "b", 1, 1), group(2, "b", 0, 0), group(3, "a", 0, 0)]
    replacements = [g[0].prompt for g in (group(4, "a", 0), group(5, "a", 0), group(6, "b", 0), group(7, "b", 0))]
    asked: list[int] = []

    def sample(prompts: Sequence[Prompt]) -> tuple[Groups, dict[str, float]]:
        asked.extend(p.id for p in prompts)
        outcomes = {4: (0, 0), 5: (1, 0), 6: (1, 0), 7: (1, 0)}
        return [group(p.id, str(p.columns["source"]), *outcomes[p.id]) for p in prompts], {}

    found = resample(groups, sample, replacements, Shaping(), limit=4, source=source)
    assert asked == [6, 7, 4, 5]  # one for each of 1, 2, 3; then 4 was dead, too
    assert [g[0].prompt.id for g in groups] == [0, 6, 7, 5]
    assert found["reward/resampled_groups"] == 3.0
    groups = [group(0, "b", 1, 1), group(1, "b", 1, 1), group(2, "b", 1, 1)]
    resample(groups, sample, replacements, Shaping(), limit=1, source=source)
    assert [g[0].prompt.id for g in groups] == [6, 1, 2]  # the budget is one prompt
