"""Critic metrics: the quality of a critic's values over the whole rollout batch of all ranks."""

from __future__ import annotations

import torch
from torch import Tensor

from gspo_lightning.core.distributed import all_sum

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
    v, r, a = (x.double() for x in (values[mask], returns[mask], advantages[mask]))
    count = mask.sum(-1, keepdim=True).clamp(min=1)
    quarter = ((mask.cumsum(-1) - 1) * 4 // count)[mask]
    parts = [x for q in range(4) for x in (a[quarter == q].sum(), (quarter == q).sum())]
    sums = torch.stack([x.double() for x in (mask.sum(), v.sum(), r.sum(), *parts)]).to(device)
    tokens, value, target, *biases = all_sum(sums).tolist()
    tokens = max(tokens, 1.0)
    spread = torch.stack([(r - target / tokens).square().sum(), (r - v - (target - value) / tokens).square().sum()])
    variance, unexplained = (all_sum(spread.to(device)) / tokens).tolist()
    found = {"critic/value_mean": value / tokens, "critic/return_mean": target / tokens}
    if variance >= CONSTANT:
        found["critic/explained_variance"] = 1 - unexplained / variance
    for name, bias, known in zip(QUARTERS, biases[::2], biases[1::2], strict=True):
        if known:
            found[f"critic/advantage_bias_by_position/{name}"] = bias / known
    return found
