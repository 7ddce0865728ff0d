"""Lengths, rewards, repetition and variety of responses, by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gspo_lightning.core.types import FinishReason, Prompt, Rollout
from gspo_lightning.loop.metrics.responses import distribution_scalars, extremes, measure_distributions, repetition
from gspo_lightning.loop.metrics.rollouts import measure_rollouts

CPU = torch.device("cpu")


def rollout(ids: list[int], *, prompt: int = 0, reward: float | None = 1.0, advantage: float = 0.0) -> Rollout:
    tokens = torch.tensor(ids)
    mask = torch.ones(len(ids), dtype=torch.bool)
    asked = Prompt(prompt, "?", (1,))
    return Rollout(asked, 0, tokens, None, mask, FinishReason.STOP, 0, reward=reward, advantage=advantage)


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ([1, 2, 3], 0.0),  # no 4-gram
        ([1, 2, 3, 4], 0.0),  # one
        ([7, 7, 7, 7, 7, 7, 7], 3 / 4),  # four 4-grams, one kind
        ([1, 2, 3, 4, 1, 2, 3, 4], 1 / 5),  # 1234 2341 3412 4123 1234
        ([1, 2, 3, 1, 2, 4, 1, 2, 5], 0.0),  # trigrams may come again
    ],
)
def test_repetition_is_the_share_of_4_grams_seen_before(ids: list[int], expected: float) -> None:
    assert repetition(np.array(ids)) == pytest.approx(expected)


def test_repetition_agrees_with_sets_of_tuples_on_random_tokens() -> None:
    rng = np.random.default_rng(0)
    for vocabulary in (2, 5, 150_000):
        ids = rng.integers(0, vocabulary, 300)
        grams = [tuple(ids[i : i + 4]) for i in range(297)]
        assert repetition(ids) == pytest.approx(1 - len(set(grams)) / 297, abs=1e-12)


@pytest.mark.parametrize(
    ("rewards", "deviation"), [([0.3] * 7, 0.0), ([0.1 + 0.2, 0.3], 0.0), ([1e6, 1e6 + 1, 1e6 + 2, 1e6 + 1], 0.5**0.5)]
)
def test_the_standard_deviation_of_rewards_is_no_rounding(rewards: list[float], deviation: float) -> None:
    found = measure_rollouts([rollout([1], reward=reward) for reward in rewards], CPU)
    assert found["reward/std"] == pytest.approx(deviation, rel=1e-9, abs=0)


def test_a_sum_that_misses_1_by_rounding_is_correct() -> None:
    assert rollout([1], reward=0.7 + 0.2 + 0.1).correct("total")
    assert not rollout([1], reward=0.999999).correct("total")


def test_distributions_and_their_scalars_by_hand() -> None:
    found = measure_distributions(
        [
            rollout([1] * 10, reward=1.0, advantage=1.0),
            rollout([1, 2], reward=0.0, advantage=-1.0),
            rollout([1, 2, 3, 4], reward=None),
        ],
        CPU,
    )
    assert found["length"] == [10.0, 2.0, 4.0]
    assert found["advantage"] == [1.0, -1.0, 0.0]
    scalars = distribution_scalars(found)
    assert scalars["response/length_max"] == 10
    assert scalars["response/length_p50"] == 4
    assert scalars["response/length_positive"] == 10
    assert scalars["response/length_negative"] == 2
    assert (scalars["reward/min"], scalars["reward/max"]) == (0, 1)
    assert scalars["response/repetition"] == pytest.approx((6 / 7) / 3)


def test_reward_scalars_are_left_out_where_no_response_has_a_reward() -> None:
    scalars = distribution_scalars(measure_distributions([rollout([1, 2], reward=None)], CPU))
    assert not {"reward/min", "response/length_positive", "response/length_negative"} & scalars.keys()


def test_distinct_counts_within_a_prompt() -> None:
    same = [rollout([1, 2]), rollout([1, 2]), rollout([1, 3]), rollout([1, 2], prompt=1)]
    assert measure_rollouts(same, CPU)["response/distinct"] == 3 / 4


def test_extremes_name_the_responses_worth_a_look() -> None:
    best, worst, parrot = rollout([1, 2], advantage=2.0), rollout([3, 4], advantage=-2.0), rollout([5] * 9)
    found = extremes([worst, best, parrot])
    assert found["largest advantage"] is best
    assert found["smallest advantage"] is worst
    assert found["longest"] is found["most repetitive"] is parrot
