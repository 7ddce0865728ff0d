"""The KL term that every objective can have."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from gspo_lightning.objectives.inputs import clamp_log_ratio

KLEstimator = Literal["k1", "k2", "k3"]


def kl_estimate(logprobs: Tensor, ref_logprobs: Tensor, estimator: KLEstimator) -> Tensor:
    """Estimate KL(policy || reference) per token from samples of the policy, with ``x = logprobs - ref_logprobs``.

    ``k1 = x`` (unbiased, but its gradient as a loss term is zero in expectation), ``k2 = x^2 / 2`` (the right
    gradient on-policy), ``k3 = exp(-x) - 1 + x`` (unbiased, never negative, GRPO's choice; arXiv 2402.03300, Eq. 4).

    >>> x = torch.tensor([0.0, 0.5])
    >>> [round(float(kl_estimate(x, torch.zeros(2), k)[1]), 4) for k in ("k1", "k2", "k3")]
    [0.5, 0.125, 0.1065]
    """
    x = logprobs - ref_logprobs
    if estimator == "k1":
        return x
    if estimator == "k2":
        return 0.5 * x.square()
    return torch.exp(-clamp_log_ratio(x)) - 1 + x
