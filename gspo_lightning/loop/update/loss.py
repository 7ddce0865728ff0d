"""Loss of a micro-batch: policy, old policy and objective meet here, with the measurements.

The Lightning module and :class:`gspo_lightning.GSPOTrainer` both train with this.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gspo_lightning.core.types import MicroBatch, ObjectiveOutput
from gspo_lightning.loop.metrics.ratios import ratio_counts
from gspo_lightning.loop.metrics.sources import CLIPPED, clipped_by_source
from gspo_lightning.loop.metrics.sums import MetricSums, ratio_histogram
from gspo_lightning.loop.metrics.update import measure_mismatch, sequence_log_ratios
from gspo_lightning.loop.old_policy.old_policy import OldPolicy
from gspo_lightning.loop.old_policy.teacher import Teacher
from gspo_lightning.objectives import Objective
from gspo_lightning.objectives.aggregate import count_positive
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.routing import LOAD, LoadBalance, RouterRecording, record_routers, routing_sums


def _no_segments(_: MicroBatch) -> None:
    return None


@dataclass(frozen=True, slots=True)
class LossTerms:
    """Terms of a run's loss.

    Args:
        policy: the trained policy.
        old_policy: provides the old log-probabilities.
        objective: turns log-probabilities and advantages into a loss.
        temperature: sampling temperature of the responses, > 0.
        segments: returns [N, T] int64 segment numbers of a micro-batch, for objectives over given segments.
        router_aux_loss_coef: weight of the routers' load-balancing loss.
        teacher: for on-policy distillation.
    """

    policy: Policy
    old_policy: OldPolicy
    objective: Objective
    temperature: float
    segments: Callable[[MicroBatch], Tensor | None] = _no_segments
    router_aux_loss_coef: float = 0.0
    teacher: Teacher | None = None


def mini_batch_count(objective: Objective, micro_batches: Sequence[MicroBatch]) -> Tensor:
    """Return the contribution of a mini-batch's micro-batches to its denominators.

    Returns:
        [2] float64: the objective's count, and the response tokens of correct responses for ``positive_nll_coef``.
    """
    counts = [objective.counted(batch.response_mask, batch.row_weights) for batch in micro_batches]
    count = torch.stack(counts).sum()
    positive_tokens = torch.zeros_like(count).double()
    if objective.positive_nll_coef > 0:
        for batch in micro_batches:
            if batch.positive is not None:
                positive_tokens = positive_tokens + count_positive(batch.response_mask, batch.positive)
    return torch.stack([count.double(), positive_tokens])


def micro_batch_loss(
    part: MicroBatch,
    terms: LossTerms,
    *,
    denominator: Tensor,
    sums: MetricSums,
    on_policy: bool = False,
    balance: LoadBalance | None = None,
) -> Tensor:
    """Return the share of one micro-batch in the loss of its mini-batch, a scalar with gradient.

    Args:
        part: N rows on the policy's device.
        terms: terms of the loss.
        denominator: [2], :func:`mini_batch_count` of the whole mini-batch, summed over ranks. It makes the gradient
            independent of how the mini-batch was split.
        sums: measurements are added here.
        on_policy: no update has been made since the snapshot, so old log-probabilities equal the current ones.
        balance: of the mini-batch, if routers have their own loss
            (:func:`gspo_lightning.loop.update.router_loss.load_balance`).
    """
    policy = terms.policy
    teacher_kl = None
    distribution = None if terms.teacher is None else terms.teacher.distribution(part)
    with record_routers(policy.routing, with_scores=balance is not None) as recording:
        if distribution is None:
            logprobs, entropy = policy(part, terms.temperature)
        else:
            logprobs, entropy, teacher_kl = policy(part, terms.temperature, distribution)
    old_logprobs = terms.old_policy.logprobs(part, terms.temperature, logprobs if on_policy else None)
    out = terms.objective(
        logprobs,
        old_logprobs,
        part.advantages,
        part.response_mask,
        behaviour_logprobs=part.behaviour_logprobs,
        ref_logprobs=part.ref_logprobs,
        entropy=entropy,
        segments=terms.segments(part),
        teacher_logprobs=part.teacher_logprobs,
        teacher_kl=teacher_kl,
        positive=part.positive,
        row_weights=part.row_weights,
        denominator=denominator[0],
        positive_tokens=denominator[1],
    )
    _measure(sums, out, part, logprobs, old_logprobs, denominator)
    if sums.tokens is not None:
        sums.tokens.add(part, logprobs, old_logprobs, entropy, out)
    if recording is None or policy.routing is None:
        return out.loss
    _measure_routes(sums, recording, part, policy)
    if balance is None:
        return out.loss
    aux_loss = balance.share(recording, part, policy.routing, policy.packed)  # (sum, count)
    sums.add({"router_aux_loss": aux_loss})
    return out.loss + balance.coef * aux_loss[0]


def _measure(
    sums: MetricSums, out: ObjectiveOutput, part: MicroBatch, new: Tensor, old: Tensor, denominator: Tensor
) -> None:
    mask = part.response_mask
    no_count = torch.zeros_like(denominator[0])  # shares of a loss add up; there is nothing to divide them by
    measured = out.sums | {"loss": (out.loss, no_count)} | measure_mismatch(part, old)
    if old is part.behaviour_logprobs:  # 0 without a measurement
        measured = {name: pair for name, pair in measured.items() if not name.startswith("kl_behaviour_old")}
    sums.add(measured)
    sums.add_vector("ratio", ratio_histogram(*sequence_log_ratios(new.detach(), old, mask)))
    if part.sources is not None:
        sums.add_vector(CLIPPED, clipped_by_source(out.clipped, mask, part.sources))
    if sums.level == "full":
        for name, counts in ratio_counts(new, old, mask, part.advantages).items():
            sums.add_vector(name, counts)
    per_token = out.ratio.ndim == mask.ndim  # else one ratio a sequence
    sums.add_max("ratio/max", out.ratio, mask if per_token else mask.any(-1))


def _measure_routes(sums: MetricSums, recording: RouterRecording, part: MicroBatch, policy: Policy) -> None:
    if policy.routing is not None and sums.level != "off":
        routes, load = routing_sums(recording, part, policy.routing)
        sums.add(routes)
        sums.add_vector(LOAD, load)
