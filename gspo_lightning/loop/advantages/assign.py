"""Assignment of advantages: from the scores of a rollout batch to an advantage per rollout, turn, step or token.

Statistics count rollouts, over all ranks. The raw reward of a rollout is never overwritten.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gspo_lightning.core.distributed import all_names, all_sum, gather_rows, largest, rank_and_world
from gspo_lightning.core.errors import UserError
from gspo_lightning.core.tolerance import equal
from gspo_lightning.core.types import Rollout
from gspo_lightning.loop.advantages.advantages import Advantages, dead_groups
from gspo_lightning.loop.advantages.gae import GAE
from gspo_lightning.loop.advantages.per_token import assign_token_advantages
from gspo_lightning.loop.advantages.shaping import Shaping
from gspo_lightning.loop.advantages.steps import add_steps, equal_steps, step_rewards
from gspo_lightning.loop.advantages.within_groups import GroupMean
from gspo_lightning.rewards.by_record import applying_weight

EPS = 1e-6
"""Added to the standard deviation of summed advantages, which have no unit."""


def assign(
    groups: Sequence[Sequence[Rollout]], advantages: Advantages, shaping: Shaping, device: torch.device
) -> tuple[list[bool] | None, dict[str, float]]:
    """Fill the advantages of every rollout of a rollout batch in place, with statistics over all ranks.

    Args:
        groups: P groups of G rollouts on this rank; every rank must hold as many.
        advantages: the comparison within a group, or ``GAE`` with the ``values`` of a critic.
        shaping: how scores are read.
        device: for the collectives.

    Returns:
        Whether each group of this rank is dead, None if groups cannot be (``GAE``, groups of one); and metrics under
        their tags.
    """
    if isinstance(advantages, GAE):
        return None, assign_token_advantages(groups, advantages, shaping, device)
    dead = assign_advantages(groups, advantages, shaping, device)
    if len(groups[0]) == 1:
        return None, {}
    counts = all_sum(torch.tensor([sum(dead), len(dead)], dtype=torch.float64, device=device)).tolist()
    return dead, {"reward/dead_groups": counts[0] / counts[1]}


def assign_advantages(
    groups: Sequence[Sequence[Rollout]], advantages: Advantages, shaping: Shaping, device: torch.device
) -> list[bool]:
    """Fill ``advantage`` of each rollout in place, and ``token_advantages`` if turns or steps have their own.

    Arguments are those of :func:`assign`; returns whether each group of this rank is dead.
    """
    rollouts = list(itertools.chain.from_iterable(groups))
    names = all_names(shaping.compared(rollouts))
    columns = shaping.columns(rollouts, names)
    values, dead = _compare(columns, names, groups, advantages, shaping, device)
    for rollout, value in zip(rollouts, values, strict=True):
        rollout.advantage = value
    step_names = step_rewards(rollouts)
    if step_names:
        _check_scored(step_names, shaping)
        add_steps(groups, step_names, shaping.weight_for, advantages, device)
        dead = [is_dead and equal_steps(group) for is_dead, group in zip(dead, groups, strict=True)]
    if shaping.turn_reward is not None:
        _assign_turns(groups, names, advantages, shaping, device)
    return dead


def _check_scored(names: Sequence[str], shaping: Shaping) -> None:
    """Refuse scores of steps that would be dropped, or would count twice; a reward may return them unannounced."""
    field = "combine_rewards"
    value: str = shaping.combine
    if shaping.turn_reward is not None:
        field = "turn_credit"
        value = "turn"
    if value != "weighted_sum":
        raise UserError(
            f"data.{field}",
            f"is {value!r}, but data.rewards.{names[0]} scored steps, which are compared with each other",
            fix="use turn_credit: conversation and combine_rewards: weighted_sum, or return scores without steps",
        )


def _compare(
    rank_columns: Tensor,
    names: Sequence[str],
    groups: Sequence[Sequence[Rollout]],
    advantages: Advantages,
    shaping: Shaping,
    device: torch.device,
) -> tuple[list[float], list[bool]]:
    """Return this rank's advantages from their columns [K + 2, N], and whether each of its groups is dead.

    Penalties are in units of the reward. In a weighted sum they are part of it; with separately normalised rewards they
    are subtracted afterwards, each less its mean over the group, so a coefficient keeps its size.
    """
    rank, world = rank_and_world()
    gathered = gather_rows(rank_columns.to(device)).cpu()  # [world, K + 2, N]
    columns = gathered.transpose(0, 1).flatten(1)  # [K + 2, world * N]
    kl = columns[-1]
    group_ids = torch.arange(len(groups) * world).repeat_interleave(len(groups[0]))
    in_groups = advantages.min_group_size > 1
    if shaping.combine == "weighted_sum":
        total = advantages(shaping.judged(columns)[0] - kl, group_ids)
    else:
        total = _normalised_separately(columns, names, group_ids, advantages, shaping)
    dead = torch.stack([dead_groups(column, group_ids) for column in shaping.judged(columns)]).all(dim=0)
    if in_groups:
        total = torch.where(dead[group_ids], 0.0, total)
    rank_values: list[float] = total.reshape(world, -1)[rank].tolist()
    rank_dead: list[bool] = dead.reshape(world, -1)[rank].tolist()
    return rank_values, rank_dead


def _normalised_separately(
    columns: Tensor, names: Sequence[str], group_ids: Tensor, advantages: Advantages, shaping: Shaping
) -> Tensor:
    """Return advantages [N] from columns [K + 2, N]: each reward compared by itself, then added (GDPO)."""
    *rewards, truncation_penalty, kl_penalty = columns
    weights = {name: shaping.weight(name) for name in names}
    terms = torch.zeros(len(names) + 1, columns.shape[1], dtype=torch.float64)  # the last row stays 0
    for row, (name, reward) in enumerate(zip(names, rewards, strict=True)):
        terms[row] = weights[name] * advantages(reward, group_ids)
    total = _standardised(terms * _shares(weights, rewards), ~kl_penalty.isnan())
    compared_ids = group_ids if advantages.min_group_size > 1 else torch.zeros_like(group_ids)
    return total - (GroupMean()(truncation_penalty, compared_ids) + GroupMean()(kl_penalty, compared_ids))


def _shares(weights: Mapping[str, float], rewards: Sequence[Tensor]) -> Tensor:
    """Return the factor on the weights of the rewards that apply (those with a number), [N].

    Args:
        weights: of K rewards, by name.
        rewards: K columns [N] in the same order.
    """
    factors = []
    applies_NK = (~torch.stack(list(rewards)).isnan()).T.tolist()
    for applies in applies_NK:
        factors.append(applying_weight(weights, dict(zip(weights, applies, strict=True))))
    return torch.tensor(factors, dtype=torch.float64)


def _assign_turns(
    groups: Sequence[Sequence[Rollout]],
    names: Sequence[str],
    advantages: Advantages,
    shaping: Shaping,
    device: torch.device,
) -> None:
    """Fill ``token_advantages``: the reward from a turn on, compared with the same turn of the others in the group.

    The first turn has the advantage of the whole conversation. A turn that only one response of a group has reached
    cannot be compared and gives no signal.
    """
    rollouts = list(itertools.chain.from_iterable(groups))
    for rollout in rollouts:
        rollout.token_advantages = torch.zeros(len(rollout.token_ids))
    turn_count = largest(max(len(rollout.turn_ends) for rollout in rollouts), device)  # ranks compare together
    for turn in range(turn_count):
        columns = shaping.later_columns(rollouts, names, turn)
        values, _ = _compare(columns, names, groups, advantages, shaping, device)
        for rollout, value in zip(rollouts, values, strict=True):
            if turn < len(rollout.turn_ends) and rollout.token_advantages is not None:
                start = rollout.turn_ends[turn - 1] if turn else 0
                tokens = slice(start, rollout.turn_ends[turn])
                rollout.token_advantages[tokens] = value * rollout.response_mask[tokens]


def _standardised(terms: Tensor, present: Tensor) -> Tensor:
    """Return sums of terms [K, N] with mean 0 and standard deviation 1 over the samples that take part; others stay 0.

    All are 0 if the sums differ by rounding only, relative to the largest term: terms may cancel.
    """
    totals = terms.sum(dim=0)
    counted = totals[present]
    if counted.numel() < 2 or bool(equal(counted.min(), counted.max(), terms[:, present].abs().max())):
        return torch.zeros_like(totals)
    return torch.where(present, (totals - counted.mean()) / (counted.std(dim=0) + EPS), 0.0)
