"""From scores to advantages: truncated responses, missing scores, several rewards, dead groups.

The raw reward of a rollout is never overwritten. What takes part in a statistic takes part in the loss and its
denominator too, and the other way round: one mask for all three.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from gspo_lightning.advantages import Advantages, dead_groups
from gspo_lightning.distributed import gather_rows, largest, rank_and_world
from gspo_lightning.errors import UserError
from gspo_lightning.types import Rollout

__all__ = [
    "CombineRewards",
    "Shaping",
    "TruncatedResponses",
    "TurnCredit",
    "assign_advantages",
    "is_dead",
    "mask_truncated",
]

TruncatedResponses = Literal["keep", "mask", "penalise"]
"""``keep``: judged like any other. ``mask``: no part in statistics, loss or denominator (DAPO's overlong filtering,
arXiv 2503.14476). ``penalise``: a fixed penalty is subtracted from the reward."""
CombineRewards = Literal["weighted_sum", "normalised_separately"]
"""``weighted_sum``: rewards are added, then compared within the group. ``normalised_separately``: each becomes an
advantage within its group, these are added with their weights and standardised over the batch (GDPO, arXiv 2601.05242):
a reward with a large spread cannot drown the others."""
TurnCredit = Literal["conversation", "turn"]
"""``conversation``: all turns share one advantage. ``turn``: each is judged by what was earned from it on."""


@dataclass(frozen=True)
class Shaping:
    """How scores are read before advantages are computed."""

    truncated: TruncatedResponses = "keep"
    truncation_penalty: float = 0.5
    combine: CombineRewards = "weighted_sum"
    weights: Mapping[str, float] = field(default_factory=dict)
    turn_reward: str | None = None
    """Name of the reward that environments pay turn by turn, where every turn gets an advantage of its own."""

    def __post_init__(self) -> None:
        if self.truncation_penalty < 0:
            raise UserError("data.truncation_penalty", f"is {self.truncation_penalty}; it must be 0 or above")

    def columns(self, rollouts: Sequence[Rollout]) -> Tensor:
        """[K, N] float64: what is compared within a group (K = 1: a weighted sum); NaN where a sample takes no part."""
        cut = [self.truncation_penalty * (self.truncated == "penalise" and r.truncated) for r in rollouts]
        penalty = [c + r.kl_penalty for c, r in zip(cut, rollouts, strict=True)]
        absent = [r.reward is None or r.masked for r in rollouts]
        if self.combine == "weighted_sum":
            rows = [[r.reward for r in rollouts]]
            rows = [[None if v is None else v - p for v, p in zip(row, penalty, strict=True)] for row in rows]
        else:
            rows = [[r.reward_parts.get(name) for r in rollouts] for name in self._compared(rollouts)]
            if self._penalised(rollouts):
                rows.append([-p for p in penalty])
        nan = float("nan")
        values = [[nan if gone or v is None else v for v, gone in zip(row, absent, strict=True)] for row in rows]
        return torch.tensor(values, dtype=torch.float64)

    def column_weights(self, rollouts: Sequence[Rollout]) -> list[float]:
        """One weight per column of :meth:`columns`."""
        if self.combine == "weighted_sum":
            return [1.0]
        return [self.weight(n) for n in self._compared(rollouts)] + [1.0] * self._penalised(rollouts)

    def later_columns(self, rollouts: Sequence[Rollout], turn: int) -> Tensor:
        """:meth:`columns` as they look at the beginning of a turn (counted from 0): without what was earned before.

        NaN also where a conversation has no such turn.
        """
        assert self.turn_reward is not None
        columns = self.columns(rollouts)
        earned = torch.tensor([sum(r.turn_rewards[:turn]) for r in rollouts], dtype=torch.float64)
        if self.combine == "weighted_sum":
            columns[0] -= self.weight(self.turn_reward) * earned
        elif self.weight(self.turn_reward) != 0:
            columns[self._compared(rollouts).index(self.turn_reward)] -= earned
        reached = torch.tensor([len(r.turn_ends) > turn for r in rollouts])
        return torch.where(reached, columns, float("nan"))

    def _compared(self, rollouts: Sequence[Rollout]) -> list[str]:
        return sorted({name for r in rollouts for name in r.reward_parts if self.weight(name) != 0})

    def _penalised(self, rollouts: Sequence[Rollout]) -> bool:
        return self.truncated == "penalise" or any(r.kl_penalty != 0 for r in rollouts)

    def weight(self, name: str) -> float:
        """Of a reward, 1 where none was given."""
        return self.weights.get(name, 1.0)


def mask_truncated(rollouts: Sequence[Rollout], shaping: Shaping) -> None:
    """Take truncated responses out in place, where they are to be masked."""
    for rollout in rollouts:
        rollout.masked = shaping.truncated == "mask" and rollout.truncated


def is_dead(group: Sequence[Rollout], shaping: Shaping) -> bool:
    """Whether a group teaches nothing: within it, every column is constant over the samples that take part."""
    columns = shaping.columns(group)
    present = columns[:, ~columns.isnan().any(dim=0)]
    return bool((present == present[:, :1]).all()) if present.numel() else True


def assign_advantages(
    groups: Sequence[Sequence[Rollout]], advantages: Advantages, shaping: Shaping, device: torch.device
) -> float:
    """Fill ``advantage`` of each rollout in place, with statistics over all ranks; returns the dead-group fraction.

    Args:
        groups: P groups of G rollouts on this rank; every rank must hold as many.
        advantages: the comparison within a group.
        shaping: how scores are read.
        device: for the collective.
    """
    rollouts = [r for g in groups for r in g]
    values, dead = _compare(shaping.columns(rollouts), groups, advantages, shaping, device)
    for rollout, value in zip(rollouts, values, strict=True):
        rollout.advantage = value
    if shaping.turn_reward is not None:
        _assign_turns(groups, advantages, shaping, device)
    return dead


def _compare(
    mine: Tensor, groups: Sequence[Sequence[Rollout]], advantages: Advantages, shaping: Shaping, device: torch.device
) -> tuple[list[float], float]:
    """Advantages of this rank's rollouts from their columns [K, N], and the dead-group fraction over all ranks."""
    rank, world = rank_and_world()
    columns = gather_rows(mine.to(device)).cpu().transpose(0, 1).reshape(mine.shape[0], -1)  # [K, world * N]
    ids = torch.arange(len(groups) * world).repeat_interleave(len(groups[0]))
    total = torch.zeros(columns.shape[1], dtype=torch.float64)
    dead = torch.ones(len(groups) * world, dtype=torch.bool)
    weights = shaping.column_weights([r for g in groups for r in g])
    for column, weight in zip(columns, weights, strict=True):
        total += weight * advantages(column, ids)
        dead &= dead_groups(column, ids)
    if shaping.combine == "normalised_separately":
        total = _standardised(total, ~columns.isnan().any(dim=0))
    values: list[float] = total.reshape(world, -1)[rank].tolist()
    return values, float(dead.double().mean())


def _assign_turns(
    groups: Sequence[Sequence[Rollout]], advantages: Advantages, shaping: Shaping, device: torch.device
) -> None:
    """Fill ``token_advantages``: what is earned from a turn on, compared with the same turn of the group's others.

    The first turn has the advantage of the whole conversation. A turn that only one of a group has reached cannot be
    compared and teaches nothing.
    """
    rollouts = [r for g in groups for r in g]
    for rollout in rollouts:
        rollout.token_advantages = torch.zeros(len(rollout.token_ids))
    for turn in range(largest(max(len(r.turn_ends) for r in rollouts), device)):
        values, _ = _compare(shaping.later_columns(rollouts, turn), groups, advantages, shaping, device)
        for rollout, value in zip(rollouts, values, strict=True):
            if turn < len(rollout.turn_ends) and rollout.token_advantages is not None:
                turns = slice(rollout.turn_ends[turn - 1] if turn else 0, rollout.turn_ends[turn])
                rollout.token_advantages[turns] = value * rollout.response_mask[turns]


def _standardised(values: Tensor, present: Tensor) -> Tensor:
    """Mean 0 and standard deviation 1 over the samples that take part; the others stay 0."""
    known = values[present]
    if known.numel() < 2 or bool((known == known[0]).all()):
        return torch.zeros_like(values)
    return torch.where(present, (values - known.mean()) / (known.std() + 1e-6), 0.0)
