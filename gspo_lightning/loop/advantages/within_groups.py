"""Group-relative advantages: how much better a response is than the mean of its group (or batch).

``rewards`` [N] is NaN for a *missing* sample, which takes no part in any statistic and gets advantage 0.
``group_ids`` [N] int64 is equal for samples of the same prompt; groups may have different sizes and any order.
Dead groups get exactly 0. Their rewards are equal, or differ by rounding only: by at most 1e-9 of the group's largest
absolute reward (1e-6 for float32 rewards). They are found by lowest and highest reward, never by a standard deviation:
``std()`` of equal values need not be 0. ``BatchNormalised`` applies the same rule to the whole batch. ``Raw`` compares
nothing, and so has no dead groups.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from typing_extensions import override

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.tolerance import equal
from gspo_lightning.loop.advantages.advantages import Advantages, Groups


class GroupNormalised(Advantages):
    """(r - mean) / (std + eps) within the group: GRPO and GSPO (arXiv 2507.18071, Eq. 6).

    The standard deviation is the unbiased one (divisor K - 1, ``torch.std``), as in TRL and verl; the papers do not
    say. With two samples every advantage is +-0.707 whatever the gap, so the size of the reward is lost.

    Args:
        eps: added to the standard deviation, >= 0, in units of the reward; 1e-6 as in verl (TRL: 1e-4).

    >>> GroupNormalised()(torch.tensor([1.0, 0.0, 0.0, 0.0, 3.0, 3.0]), torch.tensor([0, 0, 0, 0, 1, 1]))
    tensor([ 1.5000, -0.5000, -0.5000, -0.5000,  0.0000,  0.0000])
    """

    min_group_size = 2

    def __init__(self, eps: float = 1e-6) -> None:
        self.eps = _check_eps(eps)

    @override
    def compute(self, rewards: Tensor, groups: Groups) -> Tensor:
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

    @override
    def compute(self, rewards: Tensor, groups: Groups) -> Tensor:
        return groups.alive(rewards, rewards - groups.mean(rewards)[groups.index])

    def __repr__(self) -> str:
        return "GroupMean()"


class LeaveOneOut(Advantages):
    """r minus the mean of the *other* samples of the group: RLOO (arXiv 2402.14740), ``(r - mean) K / (K - 1)``.

    >>> LeaveOneOut()(torch.tensor([1.0, 0.0, 0.0]), torch.zeros(3, dtype=torch.int64))
    tensor([ 1.0000, -0.5000, -0.5000])
    """

    min_group_size = 2

    @override
    def compute(self, rewards: Tensor, groups: Groups) -> Tensor:
        scale = groups.sizes / (groups.sizes - 1)
        centred = rewards - groups.mean(rewards)[groups.index]
        return groups.alive(rewards, centred * scale[groups.index])

    def __repr__(self) -> str:
        return "LeaveOneOut()"


class BatchNormalised(Advantages):
    """(r - mean) / (std + eps) over all samples of the call, whatever their group: for PPO without a critic.

    In a run, these are all samples of a rollout batch, on all ranks. The standard deviation is the unbiased one.

    Args:
        eps: added to the standard deviation, >= 0, in units of the reward.

    >>> BatchNormalised()(torch.tensor([1.0, 0.0, 0.0, 0.0]), torch.arange(4))
    tensor([ 1.5000, -0.5000, -0.5000, -0.5000])
    """

    def __init__(self, eps: float = 1e-6) -> None:
        self.eps = _check_eps(eps)

    @override
    def compute(self, rewards: Tensor, groups: Groups) -> Tensor:
        return GroupNormalised(self.eps).compute(rewards, Groups.of(torch.zeros_like(groups.index), groups.rounding))

    def __repr__(self) -> str:
        return f"BatchNormalised(eps={self.eps!r})"


class MaxRL(Advantages):
    """(r - mean) / mean of the group: weighs rare successes up, towards maximum likelihood (arXiv 2602.02710).

    Made for rewards that are success probabilities; negative rewards are refused, because their mean may vanish.

    >>> MaxRL()(torch.tensor([1.0, 0.0, 0.0, 0.0]), torch.zeros(4, dtype=torch.int64))
    tensor([ 3., -1., -1., -1.])
    """

    min_group_size = 2

    @override
    def compute(self, rewards: Tensor, groups: Groups) -> Tensor:
        largest = groups.largest(rewards)[groups.index]
        is_zero = equal(rewards, 0.0, largest, groups.rounding)  # but for what terms that cancel leave
        rewards = torch.where(is_zero, 0.0, rewards)
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

    @override
    def compute(self, rewards: Tensor, groups: Groups) -> Tensor:
        return rewards

    def __repr__(self) -> str:
        return "Raw()"


def _check_eps(eps: float) -> float:
    if not (isinstance(eps, (int, float)) and math.isfinite(eps) and eps >= 0):
        raise UserError("eps", f"is {eps!r}, but must be a finite number >= 0")
    return float(eps)
