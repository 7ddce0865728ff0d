"""Critic metrics: the quality of a critic's values over the whole rollout batch of all ranks."""

from __future__ import annotations

import torch
from torch import Tensor

from gspo_lightning.core.distributed import all_sum
from gspo_lightning.loop.metrics.sums import reduce_sums

CONSTANT = 1e-3
"""Variance of the returns below which there is nothing to explain."""
QUARTERS = ("first", "second", "third", "last")
"""Quarters of a response, by position among the tokens that the policy chose."""


def measure_critic(
    values: Tensor, returns: Tensor, advantages: Tensor, mask: Tensor, device: torch.device
) -> dict[str, float]:
    """Return scalars under their tags (docs/metrics.md), from sums in float64.

    Args:
        values: [N, T] of the critic before it is trained on these rollouts.
        returns: [N, T] targets of the values.
        advantages: [N, T], not whitened.
        mask: [N, T] bool, True on the tokens that count.
        device: for the collective.
    """
    values = values[mask].double()  # [M] tokens that count, of all rows
    returns = returns[mask].double()
    advantages = advantages[mask].double()
    tokens = float(mask.sum())
    sums = {"values": (float(values.sum()), tokens), "returns": (float(returns.sum()), tokens)}
    quarters = _quarters(mask)
    for i, name in enumerate(QUARTERS):
        in_quarter = quarters == i
        sums[name] = (float(advantages[in_quarter].sum()), float(in_quarter.sum()))
    reduced = reduce_sums(sums, device)

    value_sum, token_count = reduced["values"]
    return_sum, _ = reduced["returns"]
    token_count = max(token_count, 1.0)
    # a second pass around the means: a difference of mean squares would cancel
    deviations = returns - return_sum / token_count
    residuals = returns - values - (return_sum - value_sum) / token_count
    squares = torch.stack([deviations.square().sum(), residuals.square().sum()])
    variance, unexplained = (all_sum(squares.to(device)) / token_count).tolist()

    scalars = {"critic/value_mean": value_sum / token_count, "critic/return_mean": return_sum / token_count}
    if variance >= CONSTANT:
        scalars["critic/explained_variance"] = 1 - unexplained / variance
    for name in QUARTERS:
        bias, count = reduced[name]
        if count:
            scalars[f"critic/advantage_bias_by_position/{name}"] = bias / count
    return scalars


def _quarters(mask: Tensor) -> Tensor:
    """Return the quarter of its response, 0 to 3, of each of the M tokens that count: [M] int64, row by row."""
    lengths = mask.sum(-1, keepdim=True).clamp(min=1)
    positions = mask.cumsum(-1) - 1
    return (positions * len(QUARTERS) // lengths)[mask]
