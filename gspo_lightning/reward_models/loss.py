"""The Bradley-Terry loss of preference pairs."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

__all__ = ["bradley_terry"]


def bradley_terry(chosen: Tensor, rejected: Tensor, margins: Tensor, center: float = 0.0) -> Tensor:
    """Return the loss of each pair, [N] nats: ``-log sigmoid(r_c - r_r - m) + center (r_c + r_r)^2``.

    The first term is the negative log-likelihood of Bradley and Terry (1952) with the margin of Llama 2
    (arXiv 2307.09288, Eq. 2). It depends on differences only; the second term keeps the mean reward of a pair near 0
    (Eisenstein
    et al., arXiv 2312.09244, TRL's ``center_rewards_coefficient``).

    Args:
        chosen: [N] rewards of the preferred answers, float32 or wider.
        rejected: [N] rewards of the others.
        margins: [N], reward units.
        center: coefficient of the second term, >= 0.

    >>> import torch
    >>> bradley_terry(torch.tensor([1.0]), torch.tensor([1.0]), torch.zeros(1), center=0.01)
    tensor([0.7331])
    """
    loss = -F.logsigmoid(chosen - rejected - margins)
    return loss + center * (chosen + rejected).square() if center else loss
