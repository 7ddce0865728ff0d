"""Advantages: the base class, groups of samples, and checks of both."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.tolerance import ROUNDING, SINGLE, equal, is_residue


class Advantages(ABC):
    """Base of advantages: subclass it and implement :meth:`compute` on the samples that are present."""

    min_group_size: int = 1
    """Samples per group that the statistic needs."""
    per_token: ClassVar[bool] = False
    """True if each token has its own advantage, from a critic's values (``GAE``)."""

    def __call__(self, rewards: Tensor, group_ids: Tensor) -> Tensor:
        """Return advantages [N] in the dtype of ``rewards``; computed in float64.

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
            groups = Groups.of(group_ids[present], _rounding(rewards.dtype))
            result = self.compute(rewards[present].double(), groups)
            _check_result(self, result, int(present.sum()))
            advantages[present] = result.double()
        return advantages.to(rewards.dtype)

    @abstractmethod
    def compute(self, rewards: Tensor, groups: Groups) -> Tensor:
        """Return float64 advantages [M] of the M samples that are present.

        Args:
            rewards: [M] float64, finite.
            groups: the group of each sample.
        """


@dataclass(slots=True)
class Groups:
    """Groups of samples: ``index`` [M] is the group number of each sample, ``sizes`` [P] float64 the group sizes.

    ``rounding`` is the share of a group's largest absolute reward up to which a difference is none.
    """

    index: Tensor
    sizes: Tensor
    rounding: float = ROUNDING

    @classmethod
    def of(cls, group_ids: Tensor, rounding: float = ROUNDING) -> Groups:
        """Number the groups by their ids, and count their samples."""
        _, index, sizes = torch.unique(group_ids, return_inverse=True, return_counts=True)
        return cls(index, sizes.double(), rounding)

    def mean(self, values: Tensor) -> Tensor:
        """Return the mean of each group, [P]."""
        return torch.zeros_like(self.sizes).index_add(0, self.index, values) / self.sizes

    def largest(self, values: Tensor) -> Tensor:
        """Return the largest absolute value of each group, [P]."""
        return torch.zeros_like(self.sizes).scatter_reduce(0, self.index, values.abs(), "amax")

    def dead(self, values: Tensor) -> Tensor:
        """Return whether all values of a group are equal but for rounding, [P] bool (one value is always dead)."""
        return _no_spread(values, self.index, len(self.sizes), self.rounding)

    def alive(self, rewards: Tensor, advantages: Tensor) -> Tensor:
        """Return ``advantages`` [M] with exact zeros in dead groups, where a statistic may divide by zero.

        A reward at the mean of its group has the advantage 0, too, and no sign that rounding gave it.
        """
        mean = self.mean(rewards)[self.index]
        at_mean = is_residue(rewards - mean, self.largest(rewards)[self.index])
        in_dead_group = self.dead(rewards)[self.index]
        return torch.where(in_dead_group | at_mean, 0.0, advantages)


def dead_groups(rewards: Tensor, group_ids: Tensor) -> Tensor:
    """Return which groups give a group-relative method no signal: [P] bool, in ascending order of the group ids.

    A group is dead if fewer than two of its samples are present or all that are present have equal rewards. A spread
    of at most 1e-9 of the group's largest absolute reward is rounding (1e-6 for float32), and the rewards are equal.

    Args:
        rewards: [N] float, NaN = missing.
        group_ids: [N] int64.

    >>> dead_groups(torch.tensor([1.0, 1.0, 0.0, 1.0, float("nan")]), torch.tensor([7, 7, 3, 3, 9]))
    tensor([False,  True,  True])
    >>> dead_groups(torch.tensor([0.1 + 0.2, 0.3], dtype=torch.float64), torch.tensor([0, 0]))
    tensor([True])
    """
    present = _check(rewards, group_ids)
    ids, index = torch.unique(group_ids, return_inverse=True)
    return _no_spread(rewards[present].double(), index[present], len(ids), _rounding(rewards.dtype))


def _no_spread(values: Tensor, index: Tensor, count: int, rounding: float) -> Tensor:
    """Return which of ``count`` groups have no spread but rounding, [count] bool; a group without values has none.

    Args:
        values: [M] float64.
        index: [M] int64, the group of each value.
        count: number of groups.
        rounding: share of the largest absolute value up to which a spread is none.
    """
    low = torch.full((count,), math.inf, dtype=values.dtype, device=values.device)
    high = torch.full_like(low, -math.inf)
    low = low.scatter_reduce(0, index, values, "amin")
    high = high.scatter_reduce(0, index, values, "amax")
    return (low >= high) | equal(low, high, relative=rounding)  # +inf >= -inf where nothing is present


def _rounding(dtype: torch.dtype) -> float:
    """Return the share of the largest absolute reward up to which a difference is none, by what is known of it."""
    return ROUNDING if dtype == torch.float64 else SINGLE


def try_advantages(advantages: Advantages, group_size: int) -> None:
    """Call the advantages on two groups, the second one dead, before a run depends on them.

    Raises:
        UserError: the result cannot be trained with.
    """
    if advantages.per_token:
        return  # per-token advantages need values
    advantages(*_living_and_dead(group_size))


def learns_from_dead_groups(advantages: Advantages, group_size: int) -> bool:
    """True if a group with equal rewards can have non-zero advantages, because it is compared with other groups.

    >>> from gspo_lightning.loop.advantages import BatchNormalised, GroupNormalised
    >>> learns_from_dead_groups(GroupNormalised(), 4), learns_from_dead_groups(BatchNormalised(), 4)
    (False, True)
    """
    if advantages.per_token:
        return True
    return advantages.min_group_size < 2 and bool(advantages(*_living_and_dead(group_size))[group_size:].any())


def _living_and_dead(group_size: int) -> tuple[Tensor, Tensor]:
    """Return rewards and group ids of two groups; all rewards of the second are equal."""
    rewards = torch.cat([torch.arange(group_size) % 2, torch.ones(group_size)]).double()
    return rewards, torch.arange(2).repeat_interleave(group_size)


def _check_result(advantages: Advantages, result: object, count: int) -> None:
    method = f"{type(advantages).__name__}.compute"
    if not isinstance(result, Tensor) or tuple(result.shape) != (count,):
        kind = f"a {type(result).__name__}"
        if isinstance(result, Tensor):
            kind = f"a tensor of shape {tuple(result.shape)}"
        raise UserError(method, f"returned {kind}, but must return one advantage per reward, a tensor [M] = ({count},)")
    not_finite = int((~torch.isfinite(result)).sum())
    if not_finite:
        raise UserError(
            method,
            f"returned {not_finite} of {count} advantages that are not finite",
            fix="give groups whose rewards are all equal the advantage 0 (groups.alive), where their spread divides",
        )


def _check(rewards: Tensor, group_ids: Tensor) -> Tensor:
    """Check both arguments, and return where a reward is present, [N] bool."""
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
