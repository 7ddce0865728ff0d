"""Rewards chosen by a column of the record, and rewards that do not apply: weights by hand, in real workers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from gspo_lightning.core.errors import UserError
from gspo_lightning.rewards import ExactMatch, FormatReward, Reward, RewardRunner, Sample, SampleScore
from gspo_lightning.rewards.by_record import ByRecord, applying_weight
from tests.rewards import misbehaving as bad

ANSWERS = {"math": "#4", "code": "#4", "chat": "hello"}


def sample(source: str | None, text: str = "#4", **more: Any) -> Sample:
    columns: dict[str, Any] = {"answer": "4", **more} | ({"source": source} if source is not None else {})
    return Sample(f"{source}/{text}", "2+2:", text, (1,), columns)


def graded(rewards: Mapping[str, Any], samples: list[Sample], **options: Any) -> list[SampleScore]:
    with RewardRunner(rewards, num_workers=1, **options) as runner:
        return runner.score(samples)


def test_each_record_is_judged_by_its_own_reward_and_by_no_other() -> None:
    rewards = {"correct": {"by": "source", "math": ExactMatch(), "code": bad._Obeys()}}
    math, code = graded(rewards, [sample("math"), sample("code", "hang"[:2])])
    assert (math.reward, code.reward) == (1.0, 2.0)  # right; and paid by length
    assert [str(s.parts["correct"].status) for s in (math, code)] == ["ok", "ok"]
    assert [list(s.parts) for s in (math, code)] == [["correct"], ["correct"]]


def test_weight_of_an_inapplicable_reward_goes_to_the_others() -> None:
    """Weights 1 and 1/2: a right answer that ends in a digit has 1.5, and so has a right one of code."""
    rewards = {"correct": ExactMatch(), "form": {"by": "source", "math": FormatReward(r"#\d")}}
    math, code, wrong = graded(
        rewards, [sample("math"), sample("code"), sample("code", "#5")], weights={"correct": 1.0, "form": 0.5}
    )
    assert (math.reward, code.reward, wrong.reward) == (1.5, 1.5, 0.0)
    assert code.parts["form"].reward is None
    assert (str(code.parts["form"].status), code.parts["form"].detail) == ("not_applicable", "not for source = 'code'")
    assert str(code.status) == "ok"


def test_a_missing_part_is_still_missing() -> None:
    """The record that has no source, and the reward that failed to say anything about a record that it is for."""
    rewards = {"correct": ExactMatch(), "other": {"by": "source", "math": bad._Obeys()}}
    lost, unknown = graded(rewards, [sample("math", "killed"), sample(None)], max_missing_rate=1.0, deadline_s=0.3)
    assert (lost.reward, str(lost.parts["other"].status)) == (None, "missing")
    assert (unknown.reward, unknown.parts["other"].detail) == (None, "the record has no column 'source'")


def test_none_of_a_reward_by_record_does_not_apply_and_of_any_other_is_missing() -> None:
    by_record, plain = (
        {"a": ExactMatch(), "b": {"by": "source", "math": bad._Obeys()}},
        {"a": ExactMatch(), "b": bad._Obeys()},
    )
    assert graded(by_record, [sample("math", "none")])[0].reward == 0.0
    (score,) = graded(by_record, [sample("math", "none", answer="none")])
    assert str(score.parts["b"].status) == "not_applicable"
    assert graded(plain, [sample("math", "none")])[0].reward is None


def test_a_reward_may_say_itself_that_it_does_not_apply() -> None:
    (score,) = graded({"a": ExactMatch(), "b": bad._OnlyMath()}, [sample("code")])
    assert (score.reward, str(score.parts["b"].status)) == (2.0, "not_applicable")


def test_a_record_to_which_nothing_applies_has_no_reward() -> None:
    (score,) = graded({"a": {"by": "source", "math": ExactMatch()}}, [sample("code")])
    assert (score.reward, str(score.status)) == (None, "not_applicable")
    rewards = {"a": {"by": "source", "math": ExactMatch()}, "b": FormatReward(".*")}
    assert graded(rewards, [sample("code")], weights={"b": 0.0})[0].reward is None  # b has no weight


def test_a_default_judges_all_others() -> None:
    rewards = {"a": {"by": "source", "math": ExactMatch(), "default": FormatReward("#.")}}
    assert [s.reward for s in graded(rewards, [sample("math", "#5"), sample("chat", "#5")])] == [0.0, 1.0]


def test_rewards_of_the_trainer_are_chosen_too() -> None:
    rewards = {"a": {"by": "source", "math": ExactMatch(), "code": bad._InTrainer()}}
    math, code, again = graded(rewards, [sample("math"), sample("code"), sample("math", "#5")])
    assert (math.reward, again.reward) == (1.0, 0.0)
    assert code.reward is not None
    assert code.reward > 1  # its process id


@pytest.mark.parametrize(
    ("weights", "applies", "factor"),
    [
        ({}, {"a": True, "b": True}, 1.0),
        ({}, {"a": True, "b": False}, 2.0),
        ({"a": 3.0, "b": -1.0}, {"a": True, "b": False}, 4 / 3),  # a penalty weighs by its size
        ({"a": 0.0}, {"a": True, "b": False}, 1.0),  # nothing that could be scaled
        ({}, {"a": False}, 1.0),
    ],
)
def test_weights_that_apply_add_up_to_all(weights: dict[str, float], applies: dict[str, bool], factor: float) -> None:
    assert applying_weight(weights, applies) == pytest.approx(factor)


@pytest.mark.parametrize(
    ("rewards", "message"),
    [
        ({"a": {"math": ExactMatch()}}, r"rewards.a: is a mapping that does not say by which column"),
        ({"a": {"by": "source"}}, r"by: source names no reward"),
        (
            {"a": {"by": "source", "math": "MathVerifer"}},
            r"rewards.a.math: 'MathVerifer' is not registered; did you mean Ma",
        ),
        (
            {"a": {"by": "sorce", "math": ExactMatch()}},
            r"rewards.a.by: is 'sorce', a column that the records do not have; d",
        ),
        (
            {"a": {"by": "source", "code": ExactMatch()}},
            r"rewards.a: no reward applies to a record with source = 'math'",
        ),
        ({"a": {"by": "source", "math": bad._NeedsColumn()}}, r"rewards.a.math: _NeedsColumn needs the column"),
        (
            {"a": ExactMatch(), "b": {"by": "source", "math": bad._Applies("chat")}},
            r"rewards.b.math: _Applies gives none of",
        ),
    ],
)
def test_mistakes_are_found_before_the_first_rollout(rewards: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message), RewardRunner(rewards, num_workers=1) as runner:
        runner.check({"answer": "4", "source": "math"})


def test_a_column_that_the_record_does_not_choose_is_not_asked_for() -> None:
    rewards: dict[str, Reward | dict[str, Any]] = {
        "a": {"by": "source", "math": ExactMatch(), "code": bad._NeedsColumn()}
    }
    with RewardRunner(rewards, num_workers=1) as runner:
        runner.check({"answer": "4", "source": "math"})


def test_the_mapping_is_the_same_as_the_class() -> None:
    one = ByRecord("source", {"math": ExactMatch()})
    assert graded({"a": one}, [sample("math")])[0].reward == 1.0
