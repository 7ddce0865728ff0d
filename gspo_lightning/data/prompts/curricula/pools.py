"""Split prompts into easy, medium and hard pools, with fixed shares of every iteration."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.tolerance import at_least, equal
from gspo_lightning.data.prompts.curricula.curriculum import Curriculum, Seen, first_of
from gspo_lightning.data.prompts.weighted import largest_remainder

EASY = "easy"
MEDIUM = "medium"
HARD = "hard"
_NEXT = {EASY: (MEDIUM, HARD), MEDIUM: (HARD, EASY), HARD: (MEDIUM, EASY)}
"""Pools that lend prompts to a pool that is too small, in this order."""


class DifficultyPools(Curriculum):
    """Prompts in three pools by the latest mean accuracy of their group, each with its share of an iteration.

    A prompt not sampled yet is medium, or in the pool of its ``difficulty`` column: the easiest third of the range is
    easy, the hardest third hard. Within a pool, prompts asked the longest ago come first. Prompts that a pool lacks are
    taken from the other pools.

    Args:
        easy: mean accuracy at and above which a prompt is easy.
        hard: mean accuracy at and below which it is hard.
        quotas: pool -> weight of its share; a pool that is not named gets 0.

    >>> pools = DifficultyPools()
    >>> pools.quotas
    {'easy': 1, 'medium': 6, 'hard': 1}
    """

    def __init__(self, easy: float = 0.8, hard: float = 0.2, quotas: dict[str, float] | None = None) -> None:
        if not 0 <= hard < easy <= 1:
            raise UserError(
                "DifficultyPools.hard", f"is {hard} and easy is {easy}; they must satisfy 0 <= hard < easy <= 1"
            )
        self.easy = easy
        self.hard = hard
        self.quotas = {EASY: 1, MEDIUM: 6, HARD: 1} if quotas is None else dict(quotas)
        unknown = [name for name in self.quotas if name not in _NEXT]
        if unknown or not self.quotas or min(self.quotas.values()) < 0 or not any(self.quotas.values()):
            rule = "name easy, medium or hard, with weights of 0 or above, of which one is above 0"
            raise UserError("DifficultyPools.quotas", f"is {self.quotas}", fix=rule)

    @override
    def begin(self, seen: Seen) -> None:
        super().begin(seen)
        difficulties = seen.difficulty[~np.isnan(seen.difficulty)]
        difficulty = np.full(len(seen), 0.5)
        if len(difficulties) and not equal(difficulties.min(), difficulties.max()):
            low = difficulties.min()
            difficulty = (seen.difficulty - low) / (difficulties.max() - low)
        self._guess = np.where(np.isnan(difficulty), 0.5, difficulty)

    def pool(self, seen: Seen) -> dict[str, NDArray[np.bool_]]:
        """Return pool -> mask [n] of the prompts in it now."""
        new = np.isnan(seen.rate)
        easy = np.where(new, self._guess < 1 / 3, at_least(seen.rate, self.easy))
        hard = np.where(new, self._guess > 2 / 3, at_least(-seen.rate, -self.hard))
        return {EASY: easy, MEDIUM: ~easy & ~hard, HARD: hard}

    @override
    def choose(self, seen: Seen, free: NDArray[np.bool_], count: int, draws: NDArray[np.float64]) -> NDArray[np.int64]:
        weights = {name: Fraction(str(self.quotas.get(name, 0))) for name in _NEXT}
        shares = [count * weight / sum(weights.values()) for weight in weights.values()]
        quotas = dict(zip(_NEXT, largest_remainder(shares, count), strict=True))
        pools = self.pool(seen)
        remaining = free.copy()
        chosen: list[NDArray[np.int64]] = []

        def take(name: str, number: int) -> int:
            """Take prompts of a pool; return how many it lacks."""
            places = first_of((seen.asked, draws), remaining & pools[name], number)
            remaining[places] = False
            chosen.append(places)
            return number - len(places)

        missing = {name: take(name, number) for name, number in quotas.items()}
        for name, number in missing.items():
            for other in _NEXT[name]:
                number = take(other, number)
        return np.concatenate(chosen)
