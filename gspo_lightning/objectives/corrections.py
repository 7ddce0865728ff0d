"""Corrections for samples that another policy drew: importance weights on the loss, and rows that are dropped.

The other policy is an inference engine of another precision, whose errors alone can collapse a run (arXiv 2605.14220),
or weights of some updates ago. All weights are constants: they carry no gradient, and what they drop stays in the
denominator of the loss.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gspo_lightning.objectives.inputs import Rows, clamp_log_ratio
from gspo_lightning.objectives.measure import Sums

Correction = Literal["none", "token", "sequence"]
CorrectionMode = Literal["truncate", "mask"]


@dataclass(frozen=True, slots=True)
class Corrections:
    """Corrections of an objective; the fields are its options (:class:`gspo_lightning.objectives.Objective`)."""

    level: Correction = "none"
    cap: float = 2.0
    floor: float | None = None
    mode: CorrectionMode = "truncate"
    trm_delta: float | None = None
    opsm_delta: float | None = None

    def importance(self, rows: Rows) -> Tensor:
        """Return importance weights old / behaviour, [N, 1] or [N, T], for samples of a policy other than ``old``.

        At sequence level the weight is the geometric mean over tokens: the product collapses (0.06 where tokens say
        0.9999). Outside ``[floor, cap]`` a weight is cut to the bound (truncated importance sampling), or is 0: for
        tokens and with both bounds this is SAO's mask (arXiv 2607.07508).
        """
        log_weight = _log_weight(rows)
        if self.level == "sequence":
            log_weight = rows.mean(log_weight).unsqueeze(-1)
        weight = torch.exp(clamp_log_ratio(log_weight))
        if self.mode == "truncate":
            return weight.clamp(min=self.floor, max=self.cap)
        outside = weight > self.cap if self.floor is None else (weight > self.cap) | (weight < self.floor)
        return torch.where(outside, 0.0, weight)

    def weights(self, rows: Rows, loss: Tensor) -> tuple[Tensor | None, Sums]:
        """Return constant weights on ``loss``, at its level, and the sums that report them; None: all 1.

        Args:
            rows: with ``behaviour_logprobs``, if anything but ``opsm_delta`` is set.
            loss: [N] or [N, T].
        """
        weights: Tensor | None = None
        sums: Sums = {}
        ones = torch.ones_like(loss.detach())
        if self.level != "none":
            weights = self.importance(rows)
            weights = weights.squeeze(-1) if loss.ndim == 1 else weights.expand_as(loss)
            valid = rows.valid(loss)
            counted = torch.where(valid, weights, 0.0).double()
            sums["correction_weight"] = (counted.sum(), valid.sum().double())
            sums["correction_weight_squared"] = (counted.square().sum(), valid.sum().double())
        if self.trm_delta is not None:
            far = divergent_rows(rows, self.trm_delta)
            weights = torch.where(_like(far, loss), 0.0, ones if weights is None else weights)
            sums["trm_dropped_sequences"] = (far.sum().double(), rows.nonempty.sum().double())
        if weights is not None:
            sums |= _masked(rows, weights)
        if self.opsm_delta is not None:
            drop = _like(off_policy_rows(rows, self.opsm_delta), loss) & (rows.advantages_like(loss) < 0)
            weights = torch.where(drop, 0.0, ones if weights is None else weights)
            hit = drop if drop.ndim == 1 else drop.any(dim=-1)
            sums["opsm_dropped_sequences"] = (hit.sum().double(), rows.nonempty.sum().double())
        return weights, sums


def off_policy_rows(rows: Rows, delta: float) -> Tensor:
    """Mark rows with mean(old - new) > delta nats per token, [N] bool: dropped if the advantage is negative.

    Off-policy sequence masking (DeepSeek-V3.2, arXiv 2512.02556, section 3.1).
    """
    return rows.mean(-rows.log_ratio) > delta


def divergent_rows(rows: Rows, delta: float) -> Tensor:
    """Mark rows in which some token's KL(behaviour || old) is estimated above ``delta`` nats, [N] bool.

    Trust region masking (arXiv 2512.23075): bounds on the error of a surrogate loss depend on the largest divergence of
    any token, which no rule for single tokens can bound. Only the sampled token's log-probabilities are known, so the
    divergence of a token is estimated by k3: ``exp(x) - 1 - x`` with ``x = old - behaviour``, never negative.
    """
    x = _log_weight(rows)
    return (torch.expm1(clamp_log_ratio(x)) - x).amax(dim=-1) > delta


def _log_weight(rows: Rows) -> Tensor:
    assert rows.behaviour_logprobs is not None
    return rows.old_logprobs - rows.behaviour_logprobs


def _like(marked: Tensor, loss: Tensor) -> Tensor:
    return marked if loss.ndim == 1 else marked.unsqueeze(-1)


def _masked(rows: Rows, weights: Tensor) -> Sums:
    """Return which tokens have the weight 0, by the sign of their advantage, and how long their responses are."""
    dropped = (weights == 0) if weights.ndim == 2 else (weights == 0).unsqueeze(-1)
    dropped = dropped & rows.mask
    advantages = rows.token_advantages
    hit = dropped.any(dim=-1)
    signs = {"": rows.mask, "_positive": advantages > 0, "_negative": advantages < 0}
    sums = {
        f"correction_masked{name}": ((dropped & of).sum().double(), of.sum().double()) for name, of in signs.items()
    }
    sums["correction_masked_length"] = (torch.where(hit, rows.lengths, 0).sum().double(), hit.sum().double())
    return sums
