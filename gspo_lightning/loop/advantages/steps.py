"""Step advantages: from the scores of steps to one advantage per step of a response.

As in DeepSeekMath's process supervision (arXiv 2402.03300, section 4.1.3): the scores of all steps of a group are
compared with each other, and a step's advantage is the sum of the compared scores from it to the end of the response.
Other rewards of the whole response are compared as usual and added to all of its steps.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from gspo_lightning.core.distributed import all_names, gather_rows, largest, rank_and_world
from gspo_lightning.core.tolerance import equal
from gspo_lightning.core.types import Rollout
from gspo_lightning.loop.advantages.advantages import Advantages


def step_rewards(rollouts: Sequence[Rollout]) -> list[str]:
    """Return the sorted names of the rewards that have scored steps of any response, on any rank."""
    return all_names({name for rollout in rollouts for name in rollout.steps})


def equal_steps(group: Sequence[Rollout]) -> bool:
    """True if all steps of a group have the same score but for rounding, for every reward."""
    scores: dict[str, list[float]] = {}
    for rollout in _present(group):
        for name, steps in rollout.steps.items():
            scores.setdefault(name, []).extend(score for _, score in steps)
    return all(equal(min(values), max(values)) for values in scores.values() if values)


def add_steps(
    groups: Sequence[Sequence[Rollout]],
    names: Sequence[str],
    weight: Callable[[Rollout, str], float],
    advantages: Advantages,
    device: torch.device,
) -> None:
    """Fill ``token_advantages``: ``advantage`` plus the advantages of the steps.

    Args:
        groups: P groups of G rollouts on this rank, with ``advantage``.
        names: names of the rewards that score steps, the same on every rank.
        weight: returns the weight of a reward, by name, for a response.
        advantages: the comparison within a group; its samples are the steps.
        device: for the collective.
    """
    for group in groups:
        for rollout in group:
            rollout.token_advantages = torch.full((len(rollout.token_ids),), rollout.advantage)
    for name in names:
        compared = iter(_compared(groups, name, advantages, device))
        for rollout in itertools.chain.from_iterable(groups):
            steps = rollout.steps.get(name, ()) if _counts(rollout) else ()
            values = torch.tensor([next(compared) for _ in steps], dtype=torch.float64)
            later = weight(rollout, name) * values.flip(0).cumsum(0).flip(0)  # each step with all after it
            start = 0
            for (end, _), value in zip(steps, later.tolist(), strict=True):
                assert rollout.token_advantages is not None
                rollout.token_advantages[start:end] += value
                start = end
    for rollout in itertools.chain.from_iterable(groups):
        assert rollout.token_advantages is not None
        rollout.token_advantages *= rollout.response_mask


def _compared(
    groups: Sequence[Sequence[Rollout]], name: str, advantages: Advantages, device: torch.device
) -> list[float]:
    """Return the compared scores of this rank's steps, response by response; statistics are over all ranks."""
    rank, world = rank_and_world()
    scores: list[float] = []
    group_ids: list[int] = []
    for group_id, group in enumerate(groups, start=rank * len(groups)):
        for rollout in _present(group):
            steps = rollout.steps.get(name, ())
            scores += [score for _, score in steps]
            group_ids += [group_id] * len(steps)
    # ranks have different numbers of steps; NaN is a missing sample, which no statistic counts
    width = largest(len(scores), device)
    padded = torch.full((2, width), math.nan, dtype=torch.float64)
    padded[0, : len(scores)] = torch.tensor(scores, dtype=torch.float64)
    padded[1, : len(scores)] = torch.tensor(group_ids, dtype=torch.float64)
    gathered = gather_rows(padded.to(device)).cpu()  # [world, 2, width]
    gathered_scores = gathered[:, 0].flatten()
    gathered_ids = gathered[:, 1].nan_to_num(0.0).to(torch.int64).flatten()
    values: Tensor = advantages(gathered_scores, gathered_ids).reshape(world, width)
    rank_values: list[float] = values[rank, : len(scores)].tolist()
    return rank_values


def _present(group: Sequence[Rollout]) -> list[Rollout]:
    return [rollout for rollout in group if _counts(rollout)]


def _counts(rollout: Rollout) -> bool:
    return rollout.reward is not None and not rollout.masked
