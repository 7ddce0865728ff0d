"""Rewards become advantages: how much better a response is than its group (or batch) did on average.

``rewards`` [N] is NaN where a sample is *missing*: such a sample takes no part in any statistic and gets advantage 0.
``group_ids`` [N] int64 says which samples answer the same prompt; groups may have different sizes and any order.
Dead groups (all rewards equal) are found by equality, never by a floating-point spread, and get exactly 0.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from gspo_lightning.errors import UserError

__all__ = [
    "Advantages",
    "BatchNormalised",
    "GroupMean",
    "GroupNormalised",
    "LeaveOneOut",
    "MaxRL",
    "Raw",
    "dead_groups",
    "try_advantages",
]


class Advantages(ABC):
    """Base: subclass it and implement :meth:`compute` on the samples that are present."""

    min_group_size: int = 1
    """Samples per group that the statistic needs."""

    def __call__(self, rewards: Tensor, group_ids: Tensor) -> Tensor:
        """[N] advantages in the dtype of ``rewards``; computed in float64.

        Args:
            rewards: [N] float, NaN = missing.
            group_ids: [N] int64.

        Raises:
            UserError: a wrong shape or dtype, an infinite reward, or :meth:`compute` returned something that does not
                fit.
        """
        present = _check(rewards, group_ids)
        advantages = torch.zeros_like(rewards, dtype=torch.float64)
        if bool(present.any()):
            found = self.compute(rewards[present].double(), _Groups.of(group_ids[present]))
            _check_result(self, found, int(present.sum()))
            advantages[present] = found.double()
        return advantages.to(rewards.dtype)

    @abstractmethod
    def compute(self, rewards: Tensor, groups: _Groups) -> Tensor:
        """[M] float64 advantages of the M samples that are present.

        Args:
            rewards: [M] float64, finite.
            groups: which sample belongs where.
        """


@dataclass(slots=True)
class _Groups:
    """``index`` [M] the group number of each sample, ``sizes`` [P] float64."""

    index: Tensor
    sizes: Tensor

    @classmethod
    def of(cls, group_ids: Tensor) -> _Groups:
        _, index, sizes = torch.unique(group_ids, return_inverse=True, return_counts=True)
        return cls(index, sizes.double())

    def mean(self, values: Tensor) -> Tensor:
        """[P]."""
        return torch.zeros_like(self.sizes).index_add(0, self.index, values) / self.sizes

    def dead(self, values: Tensor) -> Tensor:
        """[P] bool: all values of the group are equal (one value is always dead)."""
        low = torch.full_like(self.sizes, math.inf).scatter_reduce(0, self.index, values, "amin")
        high = torch.full_like(self.sizes, -math.inf).scatter_reduce(0, self.index, values, "amax")
        return low == high

    def alive(self, rewards: Tensor, advantages: Tensor) -> Tensor:
        """``advantages`` [M] with exact zeros in dead groups, where a statistic may divide by zero."""
        return torch.where(self.dead(rewards)[self.index], 0.0, advantages)


class GroupNormalised(Advantages):
    """(r - mean) / (std + eps) within the group: GRPO and GSPO (arXiv 2507.18071, Eq. 6).

    The standard deviation is the unbiased one (divisor K - 1, ``torch.std``), as in TRL and verl; the papers do not
    say. With two samples every advantage is +-0.707 whatever the gap, so that the size of the reward is lost.

    Args:
        eps: added to the standard deviation, >= 0, in units of the reward; 1e-6 as in verl (TRL: 1e-4).

    >>> GroupNormalised()(torch.tensor([1.0, 0.0, 0.0, 0.0, 3.0, 3.0]), torch.tensor([0, 0, 0, 0, 1, 1]))
    tensor([ 1.5000, -0.5000, -0.5000, -0.5000,  0.0000,  0.0000])
    """

    min_group_size = 2

    def __init__(self, eps: float = 1e-6) -> None:
        self.eps = _check_eps(eps)

    def compute(self, rewards: Tensor, groups: _Groups) -> Tensor:
        """See the class."""
        centred = rewards - groups.mean(rewards)[groups.index]
        variance = groups.mean(centred.square()) * groups.sizes / (groups.sizes - 1)
        return groups.alive(rewards, centred / (variance.sqrt()[groups.index] + self.eps))

    def __repr__(self) -> str:
        return f"GroupNormalised(eps={self.eps!r})"


class GroupMean(Advantages):
    """r - mean of the group, not divided by its spread: Dr. GRPO (arXiv 2503.20783).

    >>> GroupMean()(torch.tensor([1.0, 0.0, 0.0, 0.0]), torch.zeros(4, dtype=torch.int64))
    tensor([ 0.7500, -0.2500, -0.2500, -0.2500])
    """

    min_group_size = 2

    def compute(self, rewards: Tensor, groups: _Groups) -> Tensor:
        """See the class."""
        return groups.alive(rewards, rewards - groups.mean(rewards)[groups.index])

    def __repr__(self) -> str:
        return "GroupMean()"


class LeaveOneOut(Advantages):
    """r minus the mean of the *other* samples of the group: RLOO (arXiv 2402.14740), ``(r - mean) K / (K - 1)``.

    >>> LeaveOneOut()(torch.tensor([1.0, 0.0, 0.0]), torch.zeros(3, dtype=torch.int64))
    tensor([ 1.0000, -0.5000, -0.5000])
    """

    min_group_size = 2

    def compute(self, rewards: Tensor, groups: _Groups) -> Tensor:
        """See the class."""
        scale = groups.sizes / (groups.sizes - 1)
        centred = rewards - groups.mean(rewards)[groups.index]
        return groups.alive(rewards, centred * scale[groups.index])

    def __repr__(self) -> str:
        return "LeaveOneOut()"


class BatchNormalised(Advantages):
    """(r - mean) / (std + eps) over all samples of the call, whatever their group: for PPO without a critic.

    The call is one rollout batch on one rank. The standard deviation is the unbiased one.

    Args:
        eps: added to the standard deviation, >= 0, in units of the reward.

    >>> BatchNormalised()(torch.tensor([1.0, 0.0, 0.0, 0.0]), torch.arange(4))
    tensor([ 1.5000, -0.5000, -0.5000, -0.5000])
    """

    def __init__(self, eps: float = 1e-6) -> None:
        self.eps = _check_eps(eps)

    def compute(self, rewards: Tensor, groups: _Groups) -> Tensor:
        """See the class."""
        return GroupNormalised(self.eps).compute(rewards, _Groups.of(torch.zeros_like(groups.index)))

    def __repr__(self) -> str:
        return f"BatchNormalised(eps={self.eps!r})"


class MaxRL(Advantages):
    """(r - mean) / mean of the group: weighs rare successes up, towards maximum likelihood (arXiv 2602.02710).

    Made for rewards that are success probabilities; negative rewards are refused, because their mean may vanish.

    >>> MaxRL()(torch.tensor([1.0, 0.0, 0.0, 0.0]), torch.zeros(4, dtype=torch.int64))
    tensor([ 3., -1., -1., -1.])
    """

    min_group_size = 2

    def compute(self, rewards: Tensor, groups: _Groups) -> Tensor:
        """See the class."""
        if bool((rewards < 0).any()):
            raise UserError(
                "rewards",
                f"reach down to {float(rewards.min()):g}, but MaxRL divides by the mean and needs rewards >= 0",
                fix="shift or clip the rewards, or use GroupNormalised",
            )
        return groups.alive(rewards, rewards / groups.mean(rewards)[groups.index] - 1)

    def __repr__(self) -> str:
        return "MaxRL()"


class Raw(Advantages):
    """The reward itself, no baseline.

    >>> Raw()(torch.tensor([1.0, float("nan"), -2.0]), torch.arange(3))
    tensor([ 1.,  0., -2.])
    """

    def compute(self, rewards: Tensor, groups: _Groups) -> Tensor:
        """See the class."""
        return rewards

    def __repr__(self) -> str:
        return "Raw()"


def dead_groups(rewards: Tensor, group_ids: Tensor) -> Tensor:
    """Which groups teach a group-relative method nothing: [P] bool, in ascending order of the group ids.

    A group is dead if fewer than two of its samples are present or all that are present have equal rewards.

    Args:
        rewards: [N] float, NaN = missing.
        group_ids: [N] int64.

    >>> dead_groups(torch.tensor([1.0, 1.0, 0.0, 1.0, float("nan")]), torch.tensor([7, 7, 3, 3, 9]))
    tensor([False,  True,  True])
    """
    present = _check(rewards, group_ids)
    ids, index = torch.unique(group_ids, return_inverse=True)
    low = torch.full(ids.shape, math.inf, dtype=rewards.dtype, device=rewards.device)
    high = torch.full_like(low, -math.inf)
    low = low.scatter_reduce(0, index[present], rewards[present], "amin")
    high = high.scatter_reduce(0, index[present], rewards[present], "amax")
    return low >= high  # +inf >= -inf where nothing is present


def try_advantages(advantages: Advantages, group_size: int) -> None:
    """Call it on two groups, of which the second is dead, before a run depends on it.

    Raises:
        UserError: what it returns cannot be trained with.
    """
    rewards = torch.cat([torch.arange(group_size) % 2, torch.ones(group_size)]).double()
    advantages(rewards, torch.arange(2).repeat_interleave(group_size))


def _check_result(advantages: Advantages, found: object, count: int) -> None:
    where = f"{type(advantages).__name__}.compute"
    if not isinstance(found, Tensor) or tuple(found.shape) != (count,):
        kind = f"a tensor of shape {tuple(found.shape)}" if isinstance(found, Tensor) else f"a {type(found).__name__}"
        raise UserError(where, f"returned {kind}, but must return one advantage per reward, a tensor [M] = ({count},)")
    if not bool(torch.isfinite(found).all()):
        raise UserError(
            where,
            f"returned {int((~torch.isfinite(found)).sum())} of {count} advantages that are not finite",
            fix="give groups whose rewards are all equal the advantage 0 (groups.alive), where their spread divides",
        )


def _check(rewards: Tensor, group_ids: Tensor) -> Tensor:
    """[N] bool, where a reward is present."""
    if not rewards.is_floating_point() or rewards.ndim != 1:
        raise UserError(
            "rewards", f"has shape {tuple(rewards.shape)} and dtype {rewards.dtype}, but must be floating-point [N]"
        )
    if tuple(group_ids.shape) != tuple(rewards.shape) or group_ids.dtype != torch.int64:
        raise UserError(
            "group_ids",
            f"has shape {tuple(group_ids.shape)} and dtype {group_ids.dtype}, but must be int64 [N] = "
            f"({rewards.shape[0]},) like rewards",
        )
    if bool(torch.isinf(rewards).any()):
        raise UserError(
            "rewards", f"has {int(torch.isinf(rewards).sum())} infinite values, but must be finite or NaN (missing)"
        )
    return ~torch.isnan(rewards)


def _check_eps(eps: float) -> float:
    if not (isinstance(eps, (int, float)) and math.isfinite(eps) and eps >= 0):
        raise UserError("eps", f"is {eps!r}, but must be a finite number >= 0")
    return float(eps)
