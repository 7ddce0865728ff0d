"""Reward shaping: how scores are read, with truncated responses, missing scores, several rewards and dead groups.

The raw reward of a rollout is never overwritten. One mask serves the statistics, the loss and its denominator: a sample
takes part in all three or in none. A group is dead, and its advantages are exactly 0, if its rewards (less the
truncation penalty) are equal, whatever its KL to the reference. Rewards that differ by rounding only are equal
(:mod:`gspo_lightning.core.tolerance`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.tolerance import is_residue
from gspo_lightning.core.types import Rollout
from gspo_lightning.loop.advantages.advantages import dead_groups
from gspo_lightning.loop.advantages.steps import equal_steps
from gspo_lightning.rewards.by_record import applying_weight
from gspo_lightning.rewards.scores import summed

TruncatedResponses = Literal["keep", "mask", "penalise"]
"""``keep``: treated like any other response.

``mask``: no part in statistics, loss or denominator (DAPO's overlong filtering, arXiv 2503.14476). ``penalise``: a
fixed penalty is subtracted from the reward.
"""
CombineRewards = Literal["weighted_sum", "normalised_separately"]
"""``weighted_sum``: rewards are added, then compared within the group.

``normalised_separately``: each becomes an advantage within its group; these are added with their weights and
standardised over the batch (GDPO, arXiv 2601.05242): a reward with a large spread cannot drown the others. Penalties
for truncation and KL come later, in reward units.
"""
TurnCredit = Literal["conversation", "turn"]
"""``conversation``: all turns share one advantage. ``turn``: a turn's advantage comes from the reward from it on."""


@dataclass(frozen=True)
class Shaping:
    """Settings of how scores are read before advantages are computed."""

    truncated: TruncatedResponses = "keep"
    truncation_penalty: float = 0.5
    combine: CombineRewards = "weighted_sum"
    weights: Mapping[str, float] = field(default_factory=dict)
    turn_reward: str | None = None
    """Name of the reward that environments pay turn by turn, if every turn gets its own advantage."""
    rewards: tuple[str, ...] = ()
    """Names of all rewards; if empty, the names that the rollouts of any rank have."""

    def __post_init__(self) -> None:
        if self.truncation_penalty < 0:
            raise UserError("data.truncation_penalty", f"is {self.truncation_penalty}; it must be 0 or above")

    def columns(self, rollouts: Sequence[Rollout], names: Sequence[str]) -> Tensor:
        """Return [K + 2, N] float64: rewards by name (K = 1: their weighted sum), then the truncation and KL penalties.

        NaN if a sample takes no part; in one row alone if that reward does not apply.
        """
        rows: list[Tensor] = []
        if self.combine == "weighted_sum":
            rows.append(_with_nan(self._of_whole(r) for r in rollouts))
        else:
            for name in names:
                rows.append(_with_nan(r.reward_parts.get(name) for r in rollouts))
        penalty = self.truncation_penalty if self.truncated == "penalise" else 0.0
        rows.append(_with_nan(penalty * r.truncated for r in rollouts))
        rows.append(_with_nan(r.kl_penalty for r in rollouts))
        columns = torch.stack(rows)
        absent = torch.tensor([r.reward is None or r.masked for r in rollouts], dtype=torch.bool)
        return torch.where(absent, math.nan, columns)

    def _of_whole(self, rollout: Rollout) -> float | None:
        """Return the weighted sum of the rewards of the whole response, without those that score its steps."""
        if not rollout.steps or rollout.reward is None:
            return rollout.reward
        terms = []
        for name, part in rollout.reward_parts.items():
            if name not in rollout.steps and part is not None:
                terms.append(self.weight(name) * part)
        return self.share(rollout) * summed(terms)

    def later_columns(self, rollouts: Sequence[Rollout], names: Sequence[str], turn: int) -> Tensor:
        """Return :meth:`columns` as seen from the beginning of a turn (counted from 0): without what was earned before.

        NaN also if a conversation has no such turn.
        """
        assert self.turn_reward is not None
        columns = self.columns(rollouts, names)
        earned = torch.tensor([sum(r.turn_rewards[:turn]) for r in rollouts], dtype=torch.float64)
        if self.combine == "weighted_sum":
            shares = torch.tensor([self.share(r) for r in rollouts], dtype=torch.float64)
            columns[0] = _less(columns[0], shares * self.weight(self.turn_reward) * earned)
        elif self.turn_reward in names:
            row = names.index(self.turn_reward)
            columns[row] = _less(columns[row], earned)
        reached = torch.tensor([len(r.turn_ends) > turn for r in rollouts])
        return torch.where(reached, columns, math.nan)

    def judged(self, columns: Tensor) -> Tensor:
        """Return the rows of :meth:`columns` that decide whether a group is dead: one of them must differ within it.

        KL is not among them: if the policy is the reference, it differs by rounding alone, and a spread of rounding
        must not count as a spread of rewards.
        """
        return _less(columns[:1], columns[1]) if self.combine == "weighted_sum" else columns[:-1]

    def compared(self, rollouts: Sequence[Rollout]) -> list[str]:
        """Return the rewards that are compared one by one: those configured, or else those of the rollouts."""
        names = self.rewards or {name for r in rollouts for name in r.reward_parts}
        return sorted(name for name in names if self.weight(name) != 0)

    def weight(self, name: str) -> float:
        """Return the weight of a reward, by default 1."""
        return self.weights.get(name, 1.0)

    def weight_for(self, rollout: Rollout, name: str) -> float:
        """Return a reward's weight in a response's sum: more than :meth:`weight` if other rewards do not apply."""
        return self.share(rollout) * self.weight(name)

    def share(self, rollout: Rollout) -> float:
        """Return the factor on the weights of the rewards that apply to a response."""
        return applying_weight(self.weights, {name: rollout.applies(name) for name in rollout.reward_parts})


def _with_nan(values: Iterable[float | None]) -> Tensor:
    """Return values [N] float64, NaN for None."""
    return torch.tensor([math.nan if value is None else value for value in values], dtype=torch.float64)


def _less(values: Tensor, part: Tensor) -> Tensor:
    """Return values less a part of them; what rounding leaves of a difference of equal numbers is 0."""
    difference = values - part
    scale = torch.maximum(values.abs(), part.abs())
    return torch.where(is_residue(difference, scale), 0.0, difference)


def mask_truncated(rollouts: Iterable[Rollout], shaping: Shaping) -> None:
    """Mark truncated responses as masked in place, if they are to be masked."""
    for rollout in rollouts:
        rollout.masked = shaping.truncated == "mask" and rollout.truncated


def is_dead(group: Sequence[Rollout], shaping: Shaping) -> bool:
    """True if a group gives no signal: rewards, less the truncation penalty, are equal over its present samples."""
    columns = shaping.columns(group, shaping.compared(group))
    group_ids = torch.zeros(len(group), dtype=torch.int64)
    equal_rewards = all(bool(dead_groups(column, group_ids)) for column in shaping.judged(columns))
    return equal_rewards and equal_steps(group)
