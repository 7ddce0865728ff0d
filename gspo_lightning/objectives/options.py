"""Options of every objective: a KL term, and corrections for stale samples or samples of another policy."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from gspo_lightning.objectives.inputs import Rows, clamp_log_ratio

KLEstimator = Literal["k1", "k2", "k3"]
Correction = Literal["none", "token", "sequence"]
CorrectionMode = Literal["truncate", "mask"]


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


def correction_weights(rows: Rows, level: Correction, cap: float, mode: CorrectionMode) -> Tensor:
    """Return importance weights old / behaviour, [N, 1] or [N, T], for samples of a policy other than ``old``.

    At sequence level the weight is the geometric mean over tokens: the product collapses (0.06 where tokens say
    0.9999).
    Above ``cap`` a weight is cut to ``cap`` (truncated importance sampling) or set to zero (masked).
    """
    assert rows.behaviour_logprobs is not None
    log_weight = rows.old_logprobs - rows.behaviour_logprobs
    if level == "sequence":
        log_weight = rows.mean(log_weight).unsqueeze(-1)
    weight = torch.exp(clamp_log_ratio(log_weight))
    return weight.clamp(max=cap) if mode == "truncate" else torch.where(weight > cap, 0.0, weight)


def off_policy_rows(rows: Rows, delta: float) -> Tensor:
    """Mark rows with mean(old - new) > delta nats per token, [N] bool: dropped if the advantage is negative.

    Off-policy sequence masking (DeepSeek-V3.2, arXiv 2512.02556, section 3.1).
    """
    return rows.mean(-rows.log_ratio) > delta
