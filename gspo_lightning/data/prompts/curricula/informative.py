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
        self.decay = decay
        self.prior = prior
        self.evidence = evidence
        self.sharpness = sharpness

    @override
    def begin(self, seen: Seen) -> None:
        super().begin(seen)
        difficulties = seen.difficulty[~np.isnan(seen.difficulty)]
        pass_rate = np.full(len(seen), 0.5)
        if len(difficulties) and not equal(difficulties.min(), difficulties.max()):
            low = difficulties.min()
            pass_rate = 1 - (seen.difficulty - low) / (difficulties.max() - low)
        self._mean = np.clip(np.where(np.isnan(pass_rate), 0.5, pass_rate), 0.1, 0.9)
        self.per_prompt = {name: np.zeros(len(seen)) for name in ("right", "wrong", "since")}

    def expected(self, seen: Seen) -> NDArray[np.float64]:
        """Return the expected p (1 - p) [n] of every prompt now."""
        kept = self.decay ** (seen.iteration - self.per_prompt["since"])
        a = self.prior * self._mean + kept * self.per_prompt["right"]
        b = self.prior * (1 - self._mean) + kept * self.per_prompt["wrong"]
        variance: NDArray[np.float64] = a * b / ((a + b) * (a + b + 1))
        return variance

    @override
    def choose(self, seen: Seen, free: NDArray[np.bool_], count: int, draws: NDArray[np.float64]) -> NDArray[np.int64]:
        # the largest of log weight + Gumbel noise are a draw without replacement, in proportion to the weights
        gumbel = -np.log(-np.log(np.clip(draws, 1e-12, 1 - 1e-12)))
        keys = self.sharpness * np.log(self.expected(seen)) + gumbel
        return first_of((-keys,), free, count)

    @override
    def learn(self, seen: Seen, places: NDArray[np.int64], rates: NDArray[np.float64]) -> None:
        has_rate = ~np.isnan(rates)
        places = places[has_rate]
        rates = rates[has_rate]
        faded = self.decay ** (seen.iteration - self.per_prompt["since"][places])
        for name, share in (("right", rates), ("wrong", 1 - rates)):
            self.per_prompt[name][places] = faded * self.per_prompt[name][places] + self.evidence * share
        self.per_prompt["since"][places] = seen.iteration
