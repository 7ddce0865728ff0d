"""Uniform sampling without a curriculum: all prompts are used equally often."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gspo_lightning.prompts.curricula.base import Curriculum, Seen, first_of

__all__ = ["Uniform"]


class Uniform(Curriculum):
    """A fresh shuffle for every pass over the prompts (the default). It keeps no state and costs no memory."""

    def choose(self, seen: Seen, free: NDArray[np.bool_], count: int, draws: NDArray[np.float64]) -> NDArray[np.int64]:
        """Choose the prompts asked the longest ago; a run with this curriculum orders its prompts without it."""
        return first_of((seen.asked, draws), free, count)
