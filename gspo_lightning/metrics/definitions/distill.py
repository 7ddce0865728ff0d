"""The metrics of on-policy distillation."""

from __future__ import annotations

from gspo_lightning.metrics.definitions.reading import Mean
from gspo_lightning.metrics.definitions.spec import MetricSpec

__all__ = ["DISTILL"]

_WHEN = "model.teacher"
_SAMPLED = "model.teacher without distill_exact"

DISTILL = (
    MetricSpec(
        "distill/kl",
        "mean over response tokens of log pi - log pi_teacher (k1); with distill_exact of the KL(policy || teacher) "
        "over the vocabulary",
        "nats per token",
        "falls towards 0, fast at first (quickstart with configs/distill.yaml: 2.5 to 0.1 in 5 iterations)",
        "If it does not fall, raise distill_coef or the learning rate; if it is above 5, compare the chat templates of "
        "policy and teacher.",
        "Distillation",
        when=_WHEN,
        reading=Mean("kl_new_teacher"),
    ),
    MetricSpec(
        "distill/kl_k3",
        "mean over response tokens of exp(x) - 1 - x with x = log pi_teacher - log pi, never negative",
        "nats per token",
        "as distill/kl, of which it is another estimate; smaller where the teacher rules tokens out",
        "Far above distill/kl the teacher finds tokens likely that the policy hardly samples.",
        "Distillation",
        when=_SAMPLED,
        reading=Mean("kl_new_teacher_k3"),
    ),
    MetricSpec(
        "distill/capped",
        "share of response tokens whose importance weight pi / pi_old was above correction_cap and was truncated",
        "fraction",
        "0 in the first update of an iteration, below 0.01 in the last",
        "If it grows, take fewer updates per rollout (data.minibatches_per_rollout) or lower the learning rate.",
        "Distillation",
        when=_SAMPLED,
        reading=Mean("distill_capped"),
    ),
)
