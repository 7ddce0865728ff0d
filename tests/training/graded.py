"""A plug-in for tests: rewards that move an untaught model at every update, or a taught one into the ditch."""

from __future__ import annotations

from gspo_lightning.rewards import Reward


class Graded(Reward):
    """Depends on every character and on the length, in steps of 1/7."""

    def score(self, completion: str) -> float:
        """In [0, 6/7]."""
        return (sum(i * ord(c) for i, c in enumerate(completion, 1)) % 7) / 7


class Flat(Reward):
    """Every response is worth the same: no comparison teaches anything."""

    def score(self, completion: str) -> float:
        """Always 1."""
        return 1.0


class Echo(Reward):
    """Pays for saying the same again."""

    def score(self, completion: str) -> float:
        """The number of characters that were there before in the response."""
        return float(len(completion) - len(set(completion)))
