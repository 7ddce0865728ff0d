"""Where policy, old policy and objective meet: the loss of a micro-batch, and what is measured on the way.

The Lightning module and :class:`gspo_lightning.GSPOTrainer` both train with this.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gspo_lightning.metrics.ratios import ratio_counts
from gspo_lightning.metrics.sums import MetricSums, ratio_histogram
from gspo_lightning.metrics.update import measure_mismatch, sequence_log_ratios
from gspo_lightning.objectives import Objective
from gspo_lightning.objectives.shapes import check_count
from gspo_lightning.old_policy.base import OldPolicy
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.routing import LOAD, LoadBalance, recording, routing_sums
from gspo_lightning.types import MicroBatch

__all__ = ["micro_batch_loss", "mini_batch_count"]


def mini_batch_count(objective: Objective, micro_batches: Sequence[MicroBatch]) -> Tensor:
    """What the micro-batches of a mini-batch contribute to its denominator together, a float64 scalar."""
    return torch.stack([check_count(objective, objective.count(m.response_mask)) for m in micro_batches]).sum()


def micro_batch_loss(
    part: MicroBatch,
    *,
    policy: Policy,
    old_policy: OldPolicy,
    objective: Objective,
    temperature: float,
    denominator: Tensor,
    sums: MetricSums,
    segments: Tensor | None = None,
    on_policy: bool = False,
    balance: LoadBalance | None = None,
) -> Tensor:
    """The share of one micro-batch in the loss of its mini-batch, a scalar with gradient.

    Args:
        part: N rows on the policy's device.
        policy: is trained.
        old_policy: knows the old log-probabilities of ``part``.
        objective: turns log-probabilities and advantages into a loss.
        temperature: the one responses were sampled at, > 0.
        denominator: :func:`mini_batch_count` of the whole mini-batch, summed over ranks. It makes the gradient
            independent of how the mini-batch was cut.
        sums: what is measured is added here.
        segments: [N, T] int64, for objectives over given segments.
        on_policy: no update has been made since the snapshot, so that its log-probabilities are the policy's own.
        balance: of the mini-batch, where routers have a loss of their own (:func:`load_balance`).
    """
    with recording(policy.routing, with_scores=balance is not None) as tape:
        logprobs, entropy = policy(part, temperature)
    old_logprobs = old_policy.logprobs(part, temperature, logprobs if on_policy else None)
    out = objective(
        logprobs,
        old_logprobs,
        part.advantages,
        part.response_mask,
        behaviour_logprobs=part.behaviour_logprobs,
        ref_logprobs=part.ref_logprobs,
        entropy=entropy,
        segments=segments,
        denominator=denominator,
    )
    no_count = torch.zeros_like(denominator)  # shares of a loss add up; there is nothing to divide them by
    measured = out.sums | {"loss": (out.loss, no_count)} | measure_mismatch(part, old_logprobs)
    if old_logprobs is part.behaviour_logprobs:  # 0 without a measurement
        measured = {name: pair for name, pair in measured.items() if not name.startswith("kl_behaviour_old")}
    sums.add(measured)
    log_ratios = sequence_log_ratios(logprobs.detach(), old_logprobs, part.response_mask)
    sums.add_vector("ratio", ratio_histogram(log_ratios))
    if sums.level == "full":
        for name, counts in ratio_counts(logprobs, old_logprobs, part.response_mask, part.advantages).items():
            sums.add_vector(name, counts)
    sums.add_max("ratio/max", out.ratio)  # 1 at masked positions
    if tape is not None and policy.routing is not None and sums.level != "off":
        routes, load = routing_sums(tape, part, policy.routing)
        sums.add(routes)
        sums.add_vector(LOAD, load)
    if balance is None or tape is None or policy.routing is None:
        return out.loss
    uneven = balance.share(tape, part, policy.routing, policy.packed)
    sums.add({"router_aux_loss": uneven})
    return out.loss + balance.coef * uneven[0]
