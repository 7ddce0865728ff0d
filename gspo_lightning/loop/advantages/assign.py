"""Assignment of advantages: from the scores of a rollout batch to an advantage per rollout, turn, step or token.

Statistics count rollouts, over all ranks. The raw reward of a rollout is never overwritten.
"""

from __future__ import annotations

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
    rollouts = [r for g in groups for r in g]
    names = all_names(shaping.compared(rollouts))
    values, dead = _compare(shaping.columns(rollouts, names), names, groups, advantages, shaping, device)
    for rollout, value in zip(rollouts, values, strict=True):
        rollout.advantage = value
    if scored := step_rewards(rollouts):
        _check_scored(scored, shaping)
        add_steps(groups, scored, shaping.weight_for, advantages, device)
        dead = [is_dead and equal_steps(group) for is_dead, group in zip(dead, groups, strict=True)]
    if shaping.turn_reward is not None:
        _assign_turns(groups, names, advantages, shaping, device)
    return dead


def _check_scored(names: Sequence[str], shaping: Shaping) -> None:
    """Refuse scores of steps that would be dropped, or would count twice; a reward may return them unannounced."""
    field, value = ("turn_credit", "turn") if shaping.turn_reward is not None else ("combine_rewards", shaping.combine)
    if value != "weighted_sum":
        raise UserError(
            f"data.{field}",
            f"is {value!r}, but data.rewards.{names[0]} scored steps, which are compared with each other",
            fix="use turn_credit: conversation and combine_rewards: weighted_sum, or return scores without steps",
        )


def _compare(
    mine: Tensor,
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
    columns = gather_rows(mine.to(device)).cpu().transpose(0, 1).reshape(mine.shape[0], -1)  # [K + 2, world * N]
    *rewards, cut, kl = columns
    ids = torch.arange(len(groups) * world).repeat_interleave(len(groups[0]))
    in_groups = advantages.min_group_size > 1
    if shaping.combine == "weighted_sum":
        total = advantages(shaping.judged(columns)[0] - kl, ids)
    else:
        weights = {name: shaping.weight(name) for name in names}
        terms = torch.zeros(len(names) + 1, columns.shape[1], dtype=torch.float64)
        for row, name, column in zip(range(len(names)), names, rewards, strict=True):
            terms[row] = weights[name] * advantages(column, ids)
        total = _standardised(terms * _shares(weights, rewards), ~kl.isnan())
        among = ids if in_groups else torch.zeros_like(ids)
        total -= GroupMean()(cut, among) + GroupMean()(kl, among)
    dead = torch.stack([dead_groups(column, ids) for column in shaping.judged(columns)]).all(dim=0)
    if in_groups:
        total = torch.where(dead[ids], 0.0, total)
    values: list[float] = total.reshape(world, -1)[rank].tolist()
    own: list[bool] = dead.reshape(world, -1)[rank].tolist()
    return values, own


def _shares(weights: Mapping[str, float], columns: Sequence[Tensor]) -> Tensor:
    """Return the factor on the weights of the rewards that apply (those with a number), [N]."""
    applies = [
        dict(zip(weights, row, strict=True)) for row in zip(*((~c.isnan()).tolist() for c in columns), strict=True)
    ]
    return torch.tensor([applying_weight(weights, each) for each in applies], dtype=torch.float64)


def _assign_turns(
    groups: Sequence[Sequence[Rollout]],
    names: Sequence[str],
    advantages: Advantages,
    shaping: Shaping,
    device: torch.device,
) -> None:
    """Fill ``token_advantages``: the reward from a turn on, compared with the same turn of the others in the group.

    The first turn has the advantage of the whole conversation. A turn that only one response of a group has reached
    cannot be
    compared and gives no signal.
    """
    rollouts = [r for g in groups for r in g]
    for rollout in rollouts:
        rollout.token_advantages = torch.zeros(len(rollout.token_ids))
    for turn in range(largest(max(len(r.turn_ends) for r in rollouts), device)):
        later = shaping.later_columns(rollouts, names, turn)
        values, _ = _compare(later, names, groups, advantages, shaping, device)
        for rollout, value in zip(rollouts, values, strict=True):
            if turn < len(rollout.turn_ends) and rollout.token_advantages is not None:
                turns = slice(rollout.turn_ends[turn - 1] if turn else 0, rollout.turn_ends[turn])
                rollout.token_advantages[turns] = value * rollout.response_mask[turns]


def _standardised(terms: Tensor, present: Tensor) -> Tensor:
    """Return sums of terms [K, N] with mean 0 and standard deviation 1 over the samples that take part; others stay 0.

    All are 0 if the sums differ by rounding only, relative to the largest term: terms may cancel.
    """
    values = terms.sum(dim=0)
    known = values[present]
    if known.numel() < 2 or bool(equal(known.min(), known.max(), terms[:, present].abs().max())):
        return torch.zeros_like(values)
    return torch.where(present, (values - known.mean()) / (known.std(dim=0) + 1e-6), 0.0)
