"""A plug-in for tests: three rewards whose weighted sums differ by rounding only."""

from __future__ import annotations

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
