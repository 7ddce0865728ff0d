"""Per-token advantages from scores and values, over the whole rollout batch of all ranks."""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from gspo_lightning.core.distributed import all_max, all_sum, rank_and_world
from gspo_lightning.core.tolerance import SINGLE, equal
from gspo_lightning.core.types import Rollout
from gspo_lightning.loop.advantages.gae import GAE
from gspo_lightning.loop.advantages.shaping import Shaping
from gspo_lightning.loop.metrics.critic import measure_critic
from gspo_lightning.loop.metrics.sums import reduce_sums

log = logging.getLogger(__name__)

EPS = 1e-8
"""Added to the standard deviation of advantages, in units of the reward."""


def assign_token_advantages(
    groups: Sequence[Sequence[Rollout]], gae: GAE, shaping: Shaping, device: torch.device
) -> dict[str, float]:
    """Fill ``token_advantages``, ``returns`` and ``advantage`` (the mean over tokens) of each rollout in place.

    Statistics are over all ranks: the result does not depend on which rank holds which row. A rollout of several rows
    is one episode, in the order of its rows: the reward is paid at the last token of the last row.

    Args:
        groups: groups of this rank, with ``values``.
        gae: the estimator.
        shaping: how scores are read.
        device: for the collectives.

    Returns:
        Metrics of the critic, under their tags.
    """
    rollouts = list(itertools.chain.from_iterable(groups))
    mask = padded([_counted_tokens(r) for r in rollouts]).bool()
    rewards = padded([token_rewards(r, shaping) for r in rollouts])
    values = padded([_critic_values(r) for r in rollouts])
    truncated = torch.tensor([r.truncated for r in rollouts])
    estimates = gae.estimate(rewards, values, mask, truncated)
    _warn_of_floor(gae, estimates.floored, mask, device)
    metrics = measure_critic(values, estimates.returns, estimates.advantages, mask, device)

    advantages = estimates.advantages
    if only_rounding(advantages, rewards, values, mask, around_zero=not gae.whiten, device=device):
        advantages = torch.zeros_like(advantages)
    elif gae.whiten:
        advantages = whitened(advantages, mask, device)
    for i, rollout in enumerate(rollouts):
        length = len(rollout.token_ids)
        rollout.token_advantages = advantages[i, :length].float()
        rollout.returns = estimates.returns[i, :length].float()
        rollout.advantage = float(advantages[i, :length].sum()) / max(1, int(mask[i].sum()))
    return metrics


def token_rewards(rollout: Rollout, shaping: Shaping) -> Tensor:
    """Return what each token earned, [T] float64. The score less the truncation penalty is paid at the last token.

    Scores of steps are paid at the last tokens of the steps instead, and rewards of turns at those of the turns with
    ``shaping.turn_reward``; a KL penalty at every token that has one.
    """
    rewards = torch.zeros(len(rollout.token_ids), dtype=torch.float64)
    positions = torch.nonzero(rollout.response_mask).squeeze(-1)  # of the tokens that the policy chose
    if rollout.reward is None or not len(positions):
        return rewards
    remaining = rollout.reward
    if shaping.truncated == "penalise" and rollout.truncated:
        remaining -= shaping.truncation_penalty
    for end, earned in _paid_early(rollout, shaping):
        earlier = positions[positions < end]
        if len(earlier):
            rewards[earlier[-1]] += earned
            remaining -= earned
    rewards[positions[-1]] += remaining
    if rollout.token_penalties is not None:
        rewards -= torch.where(rollout.response_mask, rollout.token_penalties.double(), 0.0)
    return rewards


def _paid_early(rollout: Rollout, shaping: Shaping) -> Iterator[tuple[int, float]]:
    """Yield (end, reward earned by then) of turns and steps, in units of the reward.

    A response's reward is the mean of its steps' scores, so each of K steps earns 1/K of its own score: more steps do
    not make a response better.
    """
    if shaping.turn_reward is not None:
        for end, earned in zip(rollout.turn_ends, rollout.turn_rewards, strict=False):
            yield end, shaping.weight_for(rollout, shaping.turn_reward) * earned
    for name, steps in rollout.steps.items():
        for end, score in steps:
            yield end, shaping.weight_for(rollout, name) * score / len(steps)


def only_rounding(
    advantages: Tensor, rewards: Tensor, values: Tensor, mask: Tensor, *, around_zero: bool, device: torch.device
) -> bool:
    """True if the advantages of all ranks differ by rounding only, so that they say nothing: all of them count as 0.

    A critic's values have the precision of float32. Advantages are differences of them and of rewards.

    Args:
        advantages: [N, T] float64.
        rewards: [N, T] float64, earned by each token.
        values: [N, T] float64, of the state before each token.
        mask: [N, T] bool, the tokens that count.
        around_zero: True if the advantages are used as they are: then they also must not differ from 0.
        device: for the collective.
    """
    low = math.inf  # a rank without a token that counts changes no extreme
    high = -math.inf
    largest = 0.0
    if mask.any():
        low = float(advantages[mask].min())
        high = float(advantages[mask].max())
        largest = float(torch.maximum(rewards.abs(), values.abs())[mask].max())
    if around_zero:
        low = min(low, 0.0)
        high = max(high, 0.0)
    extremes = torch.tensor([-low, high, largest], dtype=torch.float64, device=device)  # min a = -max -a
    negative_low, high, largest = all_max(extremes).tolist()
    return bool(equal(-negative_low, high, largest, SINGLE))


def whitened(values: Tensor, mask: Tensor, device: torch.device) -> Tensor:
    """Whiten values [N, T] to mean 0 and standard deviation 1 over the masked tokens of all ranks; 0 elsewhere."""
    counted = values[mask]
    total, count = reduce_sums({"value": (float(counted.sum()), counted.numel())}, device)["value"]
    centred = values - total / max(count, 1)
    square_sum = float(all_sum(centred[mask].square().sum().to(device)))
    std = (square_sum / max(count - 1, 1)) ** 0.5
    return torch.where(mask, centred / (std + EPS), 0.0)


def padded(rows: Sequence[Tensor]) -> Tensor:
    """Pad N rows of different lengths with zeros to [N, T] float64."""
    return torch.nn.utils.rnn.pad_sequence([row.double() for row in rows], batch_first=True)


def _critic_values(rollout: Rollout) -> Tensor:
    if rollout.values is None:
        raise ValueError(f"response {rollout.prompt.id}/{rollout.sample} (prompt/sample) has no values of a critic")
    return rollout.values


def _counted_tokens(rollout: Rollout) -> Tensor:
    """Return the tokens that count in the statistics, [T] bool: the same that count in the loss."""
    absent = rollout.reward is None or rollout.masked
    return torch.zeros_like(rollout.response_mask) if absent else rollout.response_mask


def _warn_of_floor(gae: GAE, floored: Tensor, mask: Tensor, device: torch.device) -> None:
    """Warn if the length-adaptive lambda is 0 for most responses: their advantages then look one token ahead only."""
    counts = (float(floored.sum()), float(mask.any(-1).sum()))
    at_floor, responses = reduce_sums({"floored": counts}, device)["floored"]
    rank, _ = rank_and_world()
    if gae.alpha is not None and at_floor > responses / 2 and not gae.warned and rank == 0:
        gae.warned = True
        log.warning(
            "the length-adaptive lambda is 0 for %d of %d responses, which have at most 1 / alpha = %.0f tokens: their "
            "advantages look one token ahead; raise data.advantages.alpha, or set data.advantages.lam instead",
            at_floor, responses, 1 / (gae.alpha or 1.0),
        )  # fmt: skip
