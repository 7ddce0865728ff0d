"""Compute the value loss, with or without clipping."""

from __future__ import annotations

import torch
from torch import Tensor


def value_loss(
    values: Tensor, old_values: Tensor, returns: Tensor, mask: Tensor, clip: float | None
) -> tuple[Tensor, Tensor]:
    """Return half the squared error, summed over tokens; with ``clip``, the larger of the clipped and the plain error.

    ``0.5 sum max((V - R)^2, (V_old + clamp(V - V_old, -clip, clip) - R)^2)``: the value loss of PPO's own code
    (github.com/openai/baselines; arXiv 2005.12729 lists what is in the code but not in the paper).

    Args:
        values: [N, T] with gradient.
        old_values: [N, T] before the first update on these rollouts.
        returns: [N, T] targets.
        mask: [N, T] bool, True on the tokens that count.
        clip: largest distance of a value from the old one, in reward units; None: no limit.

    Returns:
        The sum, a scalar with gradient, and the number of tokens whose gradient was clipped away.

    >>> v, old, r = (torch.tensor([[x]]) for x in (0.9, 0.5, 2.0))
    >>> value_loss(v, old, r, torch.ones(1, 1, dtype=torch.bool), 0.25)
    (tensor(0.7812), tensor(1))
    """
    values = torch.where(mask, values, 0.0)
    old_values = torch.where(mask, old_values, 0.0)
    returns = torch.where(mask, returns, 0.0)
    error = (values - returns).square()
    if clip is None:
        return 0.5 * error.sum(), torch.zeros((), dtype=torch.int64, device=mask.device)
    change = values - old_values
    near = torch.where(change.abs() > clip, old_values + change.clamp(-clip, clip), values)  # old + change would round
    clipped_error = (near - returns).square()
    clipped = (clipped_error > error) & mask
    return 0.5 * torch.maximum(error, clipped_error).sum(), clipped.sum()
