"""Draw prompts in proportion to how much their groups are expected to teach."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.tolerance import equal
from gspo_lightning.data.prompts.curricula.curriculum import Curriculum, Seen, first_of


class Informative(Curriculum):
    """Prompts drawn in proportion to the expected variance p (1 - p) of their reward.

    The belief about a prompt's pass rate p is a Beta distribution: a prior plus the results of its groups. Older
    results count for less, because the policy changes; so a solved prompt is asked again in time. The prior comes from
    the ``difficulty`` column, from the easiest (p near 1) to the hardest, or is p = 1/2. The draw is without
    replacement (Gumbel top-k).

    Args:
        decay: weight of an observation one iteration later, in (0, 1]; 1 forgets nothing.
        prior: responses that the prior counts for.
        evidence: responses that a group counts for at most.
        sharpness: exponent of p (1 - p) in the draw; 0 is uniform. Large values ask the same few prompts again and
            again (docs/mixtures.md measures 4).
    """

    def __init__(self, decay: float = 0.9, prior: float = 2.0, evidence: float = 8.0, sharpness: float = 1.0) -> None:
        if not 0 < decay <= 1:
            raise UserError("Informative.decay", f"is {decay}; it must lie in (0, 1]")
        for name, value, least in (("prior", prior, 1e-9), ("evidence", evidence, 1e-9), ("sharpness", sharpness, 0.0)):
            if not (math.isfinite(value) and value >= least):
                raise UserError(f"Informative.{name}", f"is {value}; it must be {'above 0' if least else '0 or above'}")
        self.decay, self.prior, self.evidence, self.sharpness = decay, prior, evidence, sharpness

    @override
    def begin(self, seen: Seen) -> None:
        super().begin(seen)
        known = seen.difficulty[~np.isnan(seen.difficulty)]
        low, high = (known.min(), known.max()) if len(known) else (0.0, 0.0)
        guess = 1 - (seen.difficulty - low) / (high - low) if not equal(low, high) else np.full(len(seen), 0.5)
        self._mean = np.clip(np.where(np.isnan(guess), 0.5, guess), 0.1, 0.9)
        self.per_prompt = {name: np.zeros(len(seen)) for name in ("right", "wrong", "since")}

    def expected(self, seen: Seen) -> NDArray[np.float64]:
        """Return the expected p (1 - p) [n] of every prompt now."""
        kept = self.decay ** (seen.iteration - self.per_prompt["since"])
        a = self.prior * self._mean + kept * self.per_prompt["right"]
        b = self.prior * (1 - self._mean) + kept * self.per_prompt["wrong"]
        found: NDArray[np.float64] = a * b / ((a + b) * (a + b + 1))
        return found

    @override
    def choose(self, seen: Seen, free: NDArray[np.bool_], count: int, draws: NDArray[np.float64]) -> NDArray[np.int64]:
        gumbel = -np.log(-np.log(np.clip(draws, 1e-12, 1 - 1e-12)))
        return first_of((-(self.sharpness * np.log(self.expected(seen)) + gumbel),), free, count)

    @override
    def learn(self, seen: Seen, places: NDArray[np.int64], rates: NDArray[np.float64]) -> None:
        known = ~np.isnan(rates)
        places, rates = places[known], rates[known]
        faded = self.decay ** (seen.iteration - self.per_prompt["since"][places])
        for name, share in (("right", rates), ("wrong", 1 - rates)):
            self.per_prompt[name][places] = faded * self.per_prompt[name][places] + self.evidence * share
        self.per_prompt["since"][places] = seen.iteration
