"""A plug-in: a reward that says more than right or wrong."""

from __future__ import annotations

from gspo_lightning.rewards import Reward


class TooLong(Reward):
    """Minus a quarter for every character; never above -0.25, for an empty answer costs as much as one character."""

    def score(self, completion: str) -> float:
        return -max(1, len(completion)) / 4
