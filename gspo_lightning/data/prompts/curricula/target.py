"""Choose prompts of one difficulty, adjusted to keep the policy at a given pass rate."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.tolerance import equal
from gspo_lightning.data.prompts.curricula.curriculum import Curriculum, Seen, first_of


class TargetRate(Curriculum):
    """AdaRFT (arXiv 2504.05520): prompts near a difficulty T that follows the policy's accuracy.

    After every iteration T <- clip(T + step * range * tanh(sensitivity * (mean accuracy - rate)), lowest, highest), and
    an iteration takes the prompts whose ``difficulty`` is nearest to T. The paper always takes the nearest ones. Here
    the nearest ``width`` times as many take turns, those asked the longest ago first: T rests now and then, and would
    ask the same prompts again and again. Prompts without a difficulty come last.

    Args:
        rate: mean accuracy to aim at (beta in the paper).
        sensitivity: how sharply T responds to a difference (alpha).
        step: largest move of T, in units of the range of difficulties (eta: 50 of 100 in the paper).
        start: initial T, from 0 (the easiest) to 1 (the hardest).
        width: prompts that take turns, in units of an iteration's.
    """

    def __init__(
        self, rate: float = 0.5, sensitivity: float = 2.0, step: float = 0.5, start: float = 0.0, width: float = 4.0
    ) -> None:
        for name, value in {"rate": rate, "start": start}.items():
            if not 0 <= value <= 1:
                raise UserError(f"TargetRate.{name}", f"is {value}; it must lie in [0, 1]")
        for name, value in {"sensitivity": sensitivity, "step": step}.items():
            if not (math.isfinite(value) and value > 0):
                raise UserError(f"TargetRate.{name}", f"is {value}; it must be above 0")
        if not width >= 1:
            raise UserError("TargetRate.width", f"is {width}; it must be 1 or above")
        self.rate = rate
        self.sensitivity = sensitivity
        self.step = step
        self.start = start
        self.width = width

    @override
    def begin(self, seen: Seen) -> None:
        super().begin(seen)
        difficulties = seen.difficulty[~np.isnan(seen.difficulty)]
        if not len(difficulties):
            raise UserError(
                "data.curriculum",
                f"TargetRate needs the column 'difficulty', which none of {len(seen)} prompts has",
                fix="map one (columns: {difficulty: level}), or use Informative, which finds out by itself",
            )
        self._low = float(difficulties.min())
        self._range = float(difficulties.max() - difficulties.min())
        self.values = {"difficulty": self._low + self.start * self._range}

    @override
    def choose(self, seen: Seen, free: NDArray[np.bool_], count: int, draws: NDArray[np.float64]) -> NDArray[np.int64]:
        target = self.values["difficulty"]
        distance = np.abs(seen.difficulty - target)
        distance = np.where(equal(seen.difficulty, target), 0.0, distance)
        distance = np.where(np.isnan(distance), np.inf, distance)
        near = np.zeros(len(seen), dtype=bool)
        near[first_of((distance, seen.asked, draws), free, max(count, round(self.width * count)))] = True
        return first_of((np.isinf(distance), seen.asked, distance, draws), near, count)

    @override
    def learn(self, seen: Seen, places: NDArray[np.int64], rates: NDArray[np.float64]) -> None:
        measured_rates = rates[~np.isnan(rates)]
        if len(measured_rates):
            excess = float(measured_rates.mean()) - self.rate
            move = self.step * self._range * math.tanh(self.sensitivity * excess)
            moved = self.values["difficulty"] + move
            self.values["difficulty"] = min(max(moved, self._low), self._low + self._range)
