"""Advantages of steps, by hand."""

from __future__ import annotations

import math

import pytest
import torch

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.types import FinishReason, Prompt, Rollout
from gspo_lightning.loop.advantages import GroupMean, GroupNormalised
from gspo_lightning.loop.advantages.assign import assign_advantages
from gspo_lightning.loop.advantages.shaping import Shaping, is_dead
from gspo_lightning.policy.packing.batches import make_micro_batch

CPU = torch.device("cpu")


def rollout(sample: int, tokens: int, steps: list[tuple[int, float]], correct: float | None = None) -> Rollout:
    mean = sum(score for _, score in steps) / len(steps) if steps else 0.0
    parts = {"steps": mean} | ({} if correct is None else {"correct": correct})
    return Rollout(
        Prompt(0, "p", (1,)), sample, torch.arange(tokens), None, torch.ones(tokens, dtype=torch.bool),
        FinishReason.STOP, 0, reward=sum(parts.values()), reward_parts=parts, steps={"steps": tuple(steps)},
    )  # fmt: skip


def tokens_of(group: list[Rollout]) -> list[list[float]]:
    found = []
    for one in group:
        assert one.token_advantages is not None
        found.append(one.token_advantages.tolist())
    return found


def test_a_step_earns_what_comes_from_it_on() -> None:
    """Scores 1, 0 and 0.5: their mean is 0.5, so the steps are worth 0.5, -0.5 and 0 to their group."""
    group = [rollout(0, 4, [(2, 1.0), (4, 0.0)]), rollout(1, 3, [(3, 0.5)])]
    assign_advantages([group], GroupMean(), Shaping(), CPU)
    assert tokens_of(group) == [[0.0, 0.0, -0.5, -0.5], [0.0, 0.0, 0.0]]
    assert [one.advantage for one in group] == [0.0, 0.0]  # nothing judges the responses as a whole


def test_standardised_over_all_steps_of_the_group() -> None:
    group = [rollout(0, 4, [(1, 1.0), (4, 1.0)]), rollout(1, 2, [(2, 0.0)])]
    assign_advantages([group], GroupNormalised(), Shaping(weights={"steps": 2.0}), CPU)
    mean, std = 2 / 3, math.sqrt(((1 / 3) ** 2 * 2 + (2 / 3) ** 2) / 2)
    high, low = ((score - mean) / (std + 1e-4) for score in (1.0, 0.0))
    assert tokens_of(group)[0] == pytest.approx([4 * high, 2 * high, 2 * high, 2 * high], rel=1e-3)
    assert tokens_of(group)[1] == pytest.approx([2 * low, 2 * low], rel=1e-3)


def test_response_reward_is_added_to_the_advantage_of_every_step() -> None:
    """Correctness 1 and 0, less its mean; the mean of the steps is no part of what is compared."""
    group = [rollout(0, 3, [(1, 1.0), (3, 0.0)], correct=1.0), rollout(1, 1, [(1, 0.5)], correct=0.0)]
    assign_advantages([group], GroupMean(), Shaping(), CPU)
    assert tokens_of(group) == [[0.5, 0.0, 0.0], [-0.5]]


def test_steps_that_judge_alone_have_the_weight_of_all() -> None:
    """Scores 1 and 0, less their mean; what does not apply leaves its weight of 3 to the steps' 1."""
    group = [rollout(0, 1, [(1, 1.0)]), rollout(1, 1, [(1, 0.0)])]
    for one in group:
        one.reward_parts["correct"], one.reward_statuses = None, {"correct": "not_applicable"}
    assign_advantages([group], GroupMean(), Shaping(weights={"correct": 3.0}), CPU)
    assert tokens_of(group) == [[2.0], [-2.0]]


@pytest.mark.parametrize(
    ("shaping", "field"),
    [
        (Shaping(turn_reward="game"), "data.turn_credit: is 'turn'"),
        (Shaping(combine="normalised_separately"), "data.combine_rewards: is 'normalised_separately'"),
    ],
)
def test_scores_of_steps_are_not_dropped(shaping: Shaping, field: str) -> None:
    """Of a reward that is no ``StepReward``, and so was not refused at the start."""
    group = [rollout(0, 1, [(1, 1.0)]), rollout(1, 1, [(1, 0.0)])]
    with pytest.raises(UserError, match=rf"{field}, but data\.rewards\.steps scored steps"):
        assign_advantages([group], GroupMean(), shaping, CPU)


def test_groups_do_not_see_each_other_and_missing_responses_take_no_part() -> None:
    gone = rollout(2, 2, [(2, 100.0)])
    gone.reward = None
    one = [rollout(0, 1, [(1, 1.0)]), rollout(1, 1, [(1, 0.0)]), gone]
    other = [rollout(i, 1, [(1, 7.0)]) for i in range(3)]
    dead = assign_advantages([one, other], GroupMean(), Shaping(), CPU)
    assert tokens_of(one) == [[0.5], [-0.5], [0.0, 0.0]]
    assert tokens_of(other) == [[0.0]] * 3
    assert dead == [False, True]


def test_a_group_whose_steps_differ_is_alive_whatever_their_means() -> None:
    alive = [rollout(0, 2, [(1, 1.0), (2, 0.0)]), rollout(1, 2, [(1, 0.0), (2, 1.0)])]
    assert not is_dead(alive, Shaping())
    assert is_dead([rollout(i, 2, [(1, 0.5), (2, 0.5)]) for i in range(2)], Shaping())


def test_tokens_of_others_have_no_advantage() -> None:
    group = [rollout(0, 3, [(3, 1.0)]), rollout(1, 3, [(3, 0.0)])]
    group[0].response_mask[1] = False
    assign_advantages([group], GroupMean(), Shaping(), CPU)
    assert tokens_of(group) == [[0.5, 0.0, 0.5], [-0.5, -0.5, -0.5]]


def test_steps_are_the_segments_of_a_micro_batch() -> None:
    group = [rollout(0, 4, [(2, 1.0), (4, 0.0)]), rollout(1, 3, [(1, 0.5), (3, 0.0)])]
    assign_advantages([group], GroupMean(), Shaping(), CPU)
    batch = make_micro_batch(group)
    assert batch.segments is not None
    assert batch.segments.tolist() == [[0, 0, 1, 1], [0, 1, 1, 0]]  # beyond a response nothing is read
    assert batch.advantages.shape == (2, 4)
    group[0].steps = group[1].steps = {}
    assert make_micro_batch(group).segments is None
