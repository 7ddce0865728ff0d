"""What an evaluation is shown by: its accuracy, or its mean reward where the reward says more than right or wrong."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

__all__ = ["ACCURACY", "REWARD", "Shown", "shown_by"]

Shown = Literal["accuracy", "mean reward"]
ACCURACY, REWARD = "val/accuracy", "val/reward"


def shown_by(evaluations: Iterable[Mapping[str, float]], *, named: bool) -> Shown:
    """``accuracy`` where all values of the accuracy reward were in [0, 1], or where a config names that reward.

    Args:
        evaluations: ``val/<name>`` -> value, one mapping an evaluation. Older runs have no lowest and highest score.
        named: whether ``data.evaluation.accuracy_reward`` says that this reward decides what is correct.

    >>> shown_by([{"val/accuracy": 0.0, "val/lowest_score": -2.0, "val/highest_score": 0.5}], named=False)
    'mean reward'
    """
    known = [(one.get("val/lowest_score", 0.0), one.get("val/highest_score", 1.0)) for one in evaluations]
    fractions = all(low >= 0.0 and high <= 1.0 for low, high in known)
    return "accuracy" if named or fractions else "mean reward"
