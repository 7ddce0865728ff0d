"""A plug-in for tests: rewards that move an untaught model at every update, or a taught one into the ditch."""

from __future__ import annotations

from gspo_lightning.rewards import Reward, Sample


class Graded(Reward):
    """Depends on every character and on the length, in steps of 1/7."""

    def score(self, completion: str) -> float:
        """In [0, 6/7]."""
        return (sum(i * ord(c) for i, c in enumerate(completion, 1)) % 7) / 7


class Even(Reward):
    """About half of all responses are correct, also of an untaught model."""

    def score(self, completion: str) -> float:
        """1 where the sum of the characters is even."""
        return float(sum(map(ord, completion)) % 2 == 0)


class Flat(Reward):
    """Every response is worth the same: no comparison teaches anything."""

    def score(self, completion: str) -> float:
        """Always 1."""
        return 1.0


class Silent(Reward):
    """Never has anything to say about a response; ``canned``: but about what a run is begun with."""

    def __init__(self, canned: bool = False) -> None:
        self.canned = canned

    def score(self, sample: Sample) -> float | None:
        """1 or nothing."""
        return 1.0 if self.canned and sample.id.startswith("canned") else None


class Echo(Reward):
    """Pays for saying the same again."""

    def score(self, completion: str) -> float:
        """The number of characters that were there before in the response."""
        return float(len(completion) - len(set(completion)))
