"""Responses of given lengths from the package's own sampler, without a hook in it.

The sampler draws a token by inverting the cumulative distribution at a uniform number. The end token of
:mod:`benchmarks.models` has id 0: a uniform of exactly 0 selects it, and one above its probability never does. So the
random numbers alone decide where a response ends; every line of the sampler runs as it does in training.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gspo_lightning.core.types import FinishReason, Rollout
from gspo_lightning.rollouts import Draws

__all__ = ["ScheduledDraws", "check_lengths"]

LOWEST = 0.05
"""Draws that must not end a response lie in [LOWEST, 1): far above the probability of any token of a random model."""


@dataclass(frozen=True)
class ScheduledDraws(Draws):
    """The draws of one rollout, 0 exactly where a response has to end.

    Prompt ids are the row indices of ``lengths`` [P, G].
    """

    lengths: Tensor = field(default_factory=lambda: torch.ones(1, 1, dtype=torch.int64))

    def uniform(self, prompt_ids: Tensor, samples: Tensor, positions: Tensor | int) -> Tensor:
        """[rows] float64 in {0} or [LOWEST, 1)."""
        drawn = LOWEST + (1 - LOWEST) * Draws.uniform(self, prompt_ids, samples, positions)
        last = self.lengths[prompt_ids, samples] == positions + 1
        return torch.where(last, 0.0, drawn)


def check_lengths(groups: Sequence[Sequence[Rollout]], lengths: Tensor) -> None:
    """Refuse to compare anything if responses do not have exactly the scheduled lengths.

    Raises:
        RuntimeError: a response ended early, late, or without the end token.
    """
    for p, group in enumerate(groups):
        for k, rollout in enumerate(group):
            found, wanted = int(rollout.token_ids.shape[0]), int(lengths[p, k])
            if found != wanted or rollout.finish_reason is not FinishReason.STOP:
                raise RuntimeError(
                    f"response {k} to prompt {p} has {found} tokens ({rollout.finish_reason}), "
                    f"scheduled were {wanted}: the sampler does not turn uniform draws into tokens in the order of "
                    "their ids any more"
                )
