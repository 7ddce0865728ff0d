"""The metrics of how far the policy drifts, and how certain it is."""

from __future__ import annotations

from gspo_lightning.metrics.definitions.reading import Mean
from gspo_lightning.metrics.definitions.spec import MetricSpec

__all__ = ["DRIFT"]

_POSITIVE = "model.objective.positive_nll_coef above 0"

DRIFT = (
    MetricSpec(
        "kl/old_new_k1",
        "mean over response tokens of log pi_old - log pi = -d",
        "nats per token",
        "around 0 and noisy, of either sign: unbiased for KL(old || new) only as an average",
        "Use kl/old_new_k3 for the size; a k1 that stays clearly negative means sampled tokens become more likely.",
        "Drift and entropy",
        reading=Mean("kl_old_new_k1"),
    ),
    MetricSpec(
        "kl/old_new_k3",
        "mean over response tokens of exp(d) - 1 - d, never negative",
        "nats per token",
        "0 in the first update of an iteration, below 0.01 in the last (quickstart: 0.007 at most)",
        "If it climbs over the iterations, the updates per rollout take the policy too far: lower the learning rate.",
        "Drift and entropy",
        reading=Mean("kl_old_new_k3"),
    ),
    MetricSpec(
        "kl/policy_reference_k1",
        "mean over response tokens of log pi - log pi_ref",
        "nats per token",
        "0 at the start, then grows slowly",
        "If it grows without a better reward, raise model.objective.kl_coef or lower the learning rate.",
        "Drift and entropy",
        when="model.objective.kl_coef above 0",
        reading=Mean("kl_new_ref_k1"),
    ),
    MetricSpec(
        "kl/policy_reference_k3",
        "mean over response tokens of exp(x) - 1 - x with x = log pi_ref - log pi, never negative",
        "nats per token",
        "0 at the start, then grows slowly",
        "If it grows without a better reward, raise model.objective.kl_coef or lower the learning rate.",
        "Drift and entropy",
        when="model.objective.kl_coef above 0",
        reading=Mean("kl_new_ref_k3"),
    ),
    MetricSpec(
        "policy/entropy",
        "mean over response tokens of -sum_v p_v log p_v of the current policy at the training temperature",
        "nats per token",
        "falls while a skill is learned (quickstart: 0.3 to 0.02); a fall at flat reward, or a rise, is not healthy",
        "If it reaches 0 before the reward rises, exploration is over: raise clip_high or the temperature.",
        "Drift and entropy",
        reading=Mean("entropy"),
    ),
    MetricSpec(
        "policy/positive_nll",
        "mean over the response tokens of correct responses of -log pi; 0 where there is none",
        "nats per token",
        "falls slowly, a little below policy/entropy",
        "If it falls while val/accuracy does not rise, the policy only repeats itself: lower positive_nll_coef.",
        "Drift and entropy",
        when=_POSITIVE,
        reading=Mean("positive_nll"),
    ),
    MetricSpec(
        "policy/positive_tokens",
        "response tokens of correct responses / response tokens of the mini-batch",
        "fraction",
        "rises with the reward",
        "If it stays at 0, no accuracy reward reaches 1 (data.evaluation.accuracy_reward) and the term does nothing.",
        "Drift and entropy",
        when=_POSITIVE,
        reading=Mean("positive_tokens"),
    ),
)
