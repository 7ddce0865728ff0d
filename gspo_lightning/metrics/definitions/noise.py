"""The metrics of how far the sampler is from the policy: older weights, other numerics."""

from __future__ import annotations

from gspo_lightning.metrics.definitions.reading import Mean, Root
from gspo_lightning.metrics.definitions.spec import MetricSpec

__all__ = ["NOISE", "STALENESS"]

STALENESS = (
    MetricSpec(
        "staleness/stale_tokens",
        "share of response tokens of the iteration that earlier weights sampled",
        "fraction",
        "below 0.5 in partial rollouts; 1 with rollouts ahead of training",
        "If it is high, lower data.prompts_in_flight.",
        "Numerical noise",
        when="partial rollouts, rollouts ahead of training",
    ),
    MetricSpec(
        "staleness/mean_age",
        "mean over response tokens of the optimizer steps between the weights that sampled it and those of now",
        "optimizer steps",
        "at most the updates of one iteration",
        "If the reward falls while it grows, lower data.max_carry or data.max_staleness.",
        "Numerical noise",
        when="partial rollouts, rollouts ahead of training",
    ),
    MetricSpec(
        "staleness/max_age",
        "the age of the oldest response token",
        "optimizer steps",
        "at most data.max_carry (or data.max_staleness) iterations",
        "See staleness/mean_age.",
        "Numerical noise",
        when="partial rollouts, rollouts ahead of training",
    ),
)

NOISE = (
    MetricSpec(
        "noise/sampler_logprob_gap",
        "mean over response tokens of abs(sampler's log-prob - the trainer's old log-prob)",
        "nats per token",
        "below 1e-6 in float32; 1e-3 in bfloat16 is usual and is why old log-probs are recomputed",
        "If it exceeds 0.01 the sampler is not the policy: check the temperature, stale weights and dropout.",
        "Numerical noise",
        when="rollout sources that report log-probs",
        reading=Mean("sampler_logprob_gap"),
    ),
    MetricSpec(
        "noise/sampler_sequence_gap",
        "mean over sequences of abs(mean over their response tokens of the trainer's old log-prob - the sampler's)",
        "nats per token",
        "below a tenth of the clip range: only then can the sampler's log-probs serve as the old ones",
        "If it is above that, leave model.old_logprobs at auto: they are recomputed.",
        "Numerical noise",
        when="rollout sources that report log-probs",
        reading=Mean("sampler_sequence_gap"),
    ),
    MetricSpec(
        "noise/sampler_logprob_rms",
        "root of the mean over response tokens of (sampler's log-prob - the trainer's)^2",
        "nats per token",
        "below a tenth of the clip range of a token-level objective: model.old_logprobs: auto then saves a pass",
        "See noise/sampler_logprob_gap.",
        "Numerical noise",
        when="rollout sources that report log-probs",
        reading=Root("sampler_logprob_gap_squared"),
    ),
    MetricSpec(
        "noise/sampler_sequence_rms",
        "root of the mean over sequences of (mean over response tokens of sampler's log-prob - the trainer's)^2",
        "nats per token",
        "below a tenth of the clip range of a sequence-level objective: model.old_logprobs: auto then saves a pass",
        "See noise/sampler_sequence_gap.",
        "Numerical noise",
        when="rollout sources that report log-probs",
        reading=Root("sampler_sequence_gap_squared"),
    ),
    MetricSpec(
        "noise/kl_sampler_old_k1",
        "mean over response tokens of the sampler's log-prob - the old log-prob",
        "nats per token",
        "0 up to rounding",
        "If it is not, the sampler's weights or settings are not the trainer's: see noise/sampler_logprob_gap.",
        "Numerical noise",
        when="rollout sources that report log-probs",
        reading=Mean("kl_behaviour_old_k1"),
    ),
    MetricSpec(
        "noise/kl_sampler_old_k3",
        "mean over response tokens of exp(x) - 1 - x with x = old log-prob - the sampler's, never negative",
        "nats per token",
        "0 up to rounding",
        "If it is not, the sampler's weights or settings are not the trainer's: see noise/sampler_logprob_gap.",
        "Numerical noise",
        when="rollout sources that report log-probs",
        reading=Mean("kl_behaviour_old_k3"),
    ),
)
