"""Rewards that score steps: where a step ends, what they may return, and the way through a worker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from gspo_lightning.core.errors import UserError
from gspo_lightning.rewards import RewardRunner, Sample, Score, StepReward
from gspo_lightning.rewards.scores import to_score
from gspo_lightning.rewards.steps import split_steps


class Digits(StepReward):
    """The share of digits in each step."""

    def score_steps(self, steps: Sequence[str], sample: Sample) -> Sequence[float]:
        return [sum(c.isdigit() for c in step) / len(step) for step in steps]


class Marked(StepReward):
    """Whatever it is told to return."""

    def __init__(self, value: Any) -> None:
        super().__init__(";")
        self.value = value

    def score_steps(self, steps: Sequence[str], sample: Sample) -> Sequence[float]:
        found: Sequence[float] = self.value
        return found


@pytest.mark.parametrize(
    ("text", "marker", "ends"),
    [
        ("a\nb", "\n", (2, 3)),
        ("a\nb\n", "\n", (2, 4)),
        ("a\n\n\nb", "\n", (4, 5)),
        ("\n\na\n", "\n", (4,)),
        ("one", "\n", (3,)),
        ("", "\n", ()),
        (" \n ", "\n", ()),
        ("x. y. z", ". ", (3, 6, 7)),
        ("a;;b", ";", (3, 4)),
        ("a.b", ".", (2, 3)),  # a marker is a text and no expression
    ],
)
def test_where_steps_end(text: str, marker: str, ends: tuple[int, ...]) -> None:
    assert split_steps(text, marker) == ends


def test_scores_travel_through_a_worker_with_their_places() -> None:
    with RewardRunner({"digits": Digits(";")}, num_workers=1) as runner:
        runner.check(set())
        first, second = runner.score([Sample("0", "", "1+1;22;x"), Sample("1", "", "")])
    assert first.parts["digits"].steps == ((4, 0.5), (7, 2 / 3), (8, 0.0))
    assert first.reward == pytest.approx((0.5 + 2 / 3) / 3)
    assert (second.reward, second.detail, second.parts["digits"].steps) == (0.0, "no steps", ())


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([1.0], "score_steps returned 1 scores for 2 steps"),
        (1.0, "score_steps returned a float for 2 steps"),
        (["x", 1.0], "returned 'x', which is not a number"),
        ([float("nan"), 1.0], "returned nan, but a reward must be finite"),
    ],
)
def test_malformed_step_scores_are_refused(value: Any, message: str) -> None:
    with pytest.raises(UserError, match=f"rewards.Marked: sample 7: {message}"):
        Marked(value).score_one(Sample("7", "", "a;b"))


def test_a_step_without_a_score_makes_the_response_missing() -> None:
    assert Marked([None, 1.0]).score_one(Sample("7", "", "a;b")).reward is None


def test_an_empty_marker_is_refused() -> None:
    with pytest.raises(UserError, match=r"Digits\.marker: is empty"):
        Digits("")


@pytest.mark.parametrize("steps", [((2, 1.0), (2, 0.0)), ((0, 1.0),), ((3, float("inf")),)])
def test_steps_of_a_score_rise_and_are_finite(steps: tuple[tuple[int, float], ...]) -> None:
    with pytest.raises(UserError, match=r"rewards\.Own: sample 1: .*steps"):
        to_score(Score(1.0, steps=steps), "Own", "1")
