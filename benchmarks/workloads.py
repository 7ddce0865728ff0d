"""The work: prompts and the lengths of their responses, the same numbers in every run and on both sides."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import torch
from torch import Tensor

from benchmarks.models import UNKNOWN
from gspo_lightning.core.randomness import Purpose, permutation, stream, uniforms
from gspo_lightning.core.types import Prompt

__all__ = ["MINI_BATCHES", "WORKLOADS", "Workload", "reward"]

MINI_BATCHES = 4
"""Optimizer steps per rollout batch, as in the GSPO paper."""


@dataclass(frozen=True)
class Workload:
    """One rollout batch: P prompts, G responses each.

    Prompt lengths are spread evenly over a range. Response lengths are the quantiles of a log-normal distribution,
    dealt to the rows by a fixed permutation: many short ones and a few long ones, as sampled responses are.
    """

    prompts: int
    group_size: int
    prompt_tokens: tuple[int, int]
    """Shortest and longest prompt."""
    median: int
    """Response tokens of the middle row, end token included."""
    longest: int
    """Response tokens of the longest row."""
    sigma: float = 0.8
    """Of the logarithm of response lengths; 0 makes all lengths equal."""
    mini_batches: int = MINI_BATCHES
    """Optimizer steps."""
    dead_groups: int = 0
    """Groups whose rewards are equal, the first ones."""

    @property
    def rows(self) -> int:
        """P * G."""
        return self.prompts * self.group_size

    @functools.cached_property
    def lengths(self) -> Tensor:
        """[P, G] int64 response lengths."""
        normal = NormalDist(0.0, self.sigma) if self.sigma else None
        quantiles = [(i + 0.5) / self.rows for i in range(self.rows)]
        wanted = [self.median * (2.718281828 ** normal.inv_cdf(q) if normal else 1.0) for q in quantiles]
        lengths = torch.tensor([min(max(round(n), 1), self.longest) for n in wanted])
        if self.sigma:
            lengths[-1] = self.longest
        order = permutation(stream(0, Purpose.ROW_ORDER, self.rows), self.rows)
        return lengths[order].reshape(self.prompts, self.group_size)

    @property
    def prompt_lengths(self) -> list[int]:
        """Tokens of the P prompts, spread evenly."""
        low, high = self.prompt_tokens
        return [low + round((high - low) * i / max(self.prompts - 1, 1)) for i in range(self.prompts)]

    def make_prompts(self, vocabulary: int) -> list[Prompt]:
        """P prompts of random words; ``id`` is the index."""
        prompts = []
        for i, count in enumerate(self.prompt_lengths):
            drawn = uniforms(stream(1, Purpose.PROMPT_ORDER, i), torch.arange(count))
            ids = tuple((UNKNOWN + 1 + (drawn * (vocabulary - UNKNOWN - 1)).long()).tolist())
            prompts.append(Prompt(i, " ".join(f"w{t}" for t in ids), ids, {}))
        return prompts

    def rewards(self, responses: Sequence[Sequence[int]]) -> list[float]:
        """Rewards of the token ids of all P * G responses, group by group."""
        return [
            1.0 if row < self.dead_groups * self.group_size else reward(token_ids)
            for row, token_ids in enumerate(responses)
        ]

    @property
    def response_tokens(self) -> int:
        """Response tokens of the whole batch."""
        return int(self.lengths.sum())


WORKLOADS: dict[str, Workload] = {
    "short-long": Workload(16, 8, (8, 16), 36, 160),
    "balanced": Workload(16, 8, (16, 32), 16, 64),
    "long-short": Workload(16, 8, (96, 160), 8, 32),
    "equal": Workload(16, 8, (24, 24), 24, 24, sigma=0.0),
}
"""Short prompts with long responses, balanced, long prompts with short responses, and equal lengths, where neither
packing nor early finishing can save anything."""


def reward(token_ids: Sequence[int]) -> float:
    """A number that costs nothing and differs within a group."""
    return float(sum(token_ids) % 5)
