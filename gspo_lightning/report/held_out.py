"""Headline metric of an evaluation: accuracy, or mean reward for rewards beyond right and wrong."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

__all__ = ["ACCURACY", "REWARD", "Shown", "shown_by"]

Shown = Literal["accuracy", "mean reward"]
ACCURACY, REWARD = "val/accuracy", "val/reward"


def shown_by(evaluations: Iterable[Mapping[str, float]], *, named: bool) -> Shown:
    """Return ``accuracy`` if all scores of the accuracy reward were in [0, 1], or if a config names that reward.

    Args:
        evaluations: ``val/<name>`` -> value, one mapping per evaluation. Older runs have no lowest and highest score.
        named: True if ``data.evaluation.accuracy_reward`` names the reward that decides what is correct.

    >>> shown_by([{"val/accuracy": 0.0, "val/lowest_score": -2.0, "val/highest_score": 0.5}], named=False)
    'mean reward'
    """
    known = [(one.get("val/lowest_score", 0.0), one.get("val/highest_score", 1.0)) for one in evaluations]
    fractions = all(low >= 0.0 and high <= 1.0 for low, high in known)
    return "accuracy" if named or fractions else "mean reward"
