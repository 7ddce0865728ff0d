"""A plug-in for tests: a reward that differs between responses of an untaught model, so that every update moves it."""

from __future__ import annotations

from gspo_lightning.rewards import Reward


class Graded(Reward):
    """Depends on every character and on the length, in steps of 1/7."""

    def score(self, completion: str) -> float:
        """In [0, 6/7]."""
        return (sum(i * ord(c) for i, c in enumerate(completion, 1)) % 7) / 7
