"""A plug-in for tests: rewards, alone or in weighted sums, that differ by rounding only."""

from __future__ import annotations

import numpy as np

from gspo_lightning.rewards import Reward


def _even(completion: str) -> bool:
    return sum(map(ord, completion)) % 2 == 0


class EvenSum(Reward):
    """For about half of all responses, also of an untaught model."""

    def score(self, completion: str) -> float:
        """1 where the sum of the characters is even."""
        return float(_even(completion))


class OddSum(Reward):
    """For the other half."""

    def score(self, completion: str) -> float:
        """1 where the sum of the characters is odd."""
        return float(not _even(completion))


class SingleSum(Reward):
    """A score in float32, as models and arrays give it."""

    def score(self, completion: str) -> np.float32:
        """Ten times 0.1 in float32, 1.0000001192092896, for about half of all responses, and 1 for the others."""
        tenths = np.cumsum(np.full(10, 0.1, dtype=np.float32))
        return np.float32(tenths[-1] if _even(completion) else 1.0)
