"""From the sums of one update to the scalars that are logged (tags: docs/metrics.md)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from gspo_lightning.types import MicroBatch

__all__ = ["measure_mismatch", "sequence_log_ratios", "update_scalars"]

_TAGS = {
    "ratio": "ratio/mean",
    "log_ratio_sequence": "ratio/log_sequence_mean",
    "outside_band": "ratio/outside_band",
    "clamped_ratios": "ratio/clamped",
    "clip_fraction_tokens": "clip/tokens",
    "clip_fraction_sequences": "clip/sequences",
    "clip_fraction_low": "clip/low",
    "clip_fraction_high": "clip/high",
    "clip_fraction_tokens_positive": "clip/tokens_positive",
    "clip_fraction_tokens_negative": "clip/tokens_negative",
    "zero_gradient_tokens": "clip/zero_gradient_tokens",
    "kl_old_new_k1": "kl/old_new_k1",
    "kl_old_new_k3": "kl/old_new_k3",
    "entropy": "policy/entropy",
    "kl_new_ref_k1": "kl/policy_reference_k1",
    "kl_new_ref_k3": "kl/policy_reference_k3",
    "kl_behaviour_old_k1": "noise/kl_sampler_old_k1",
    "kl_behaviour_old_k3": "noise/kl_sampler_old_k3",
    "sampler_logprob_gap": "noise/sampler_logprob_gap",
    "sampler_sequence_gap": "noise/sampler_sequence_gap",
    "changed_choices": "moe/changed_choices",
    "changed_experts": "moe/changed_experts",
    "router_confidence": "moe/router_confidence",
    "router_aux_loss": "moe/aux_loss",
}
"""Name in the sums -> tag. Names that are not listed are logged as ``objective/<name>``."""
_ROOTS = {
    "sampler_logprob_gap_squared": "noise/sampler_logprob_rms",
    "sampler_sequence_gap_squared": "noise/sampler_sequence_rms",
}
_SQUARES = {
    "ratio_squared": ("ratio", "ratio/std"),
    "log_ratio_sequence_squared": ("log_ratio_sequence", "ratio/log_sequence_std"),
}


def sequence_log_ratios(logprobs: Tensor, old_logprobs: Tensor, mask: Tensor) -> Tensor:
    """log s_i [rows with a response]: the mean over response tokens of log pi - log pi_old (GSPO, Eq. 6)."""
    difference = torch.where(mask, logprobs - old_logprobs, 0.0)
    lengths = mask.sum(-1)
    means: Tensor = difference.sum(-1) / lengths.clamp(min=1)
    return means[lengths > 0]


def measure_mismatch(batch: MicroBatch, old_logprobs: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """How far the sampler's log-probabilities are from the trainer's for the same weights, as sums and counts.

    Per token, and per sequence the |mean log-ratio|: what a sequence-level clip range is up against. Tokens of an older
    version are left out; there is nothing to measure where the old log-probabilities *are* the sampler's.
    """
    if batch.behaviour_logprobs is None or old_logprobs is batch.behaviour_logprobs:
        return {}
    mask = batch.response_mask if batch.stale is None else batch.response_mask & ~batch.stale
    gap = torch.where(mask, old_logprobs - batch.behaviour_logprobs, 0.0).double()
    lengths = mask.sum(-1)
    sequences = (gap.sum(-1) / lengths.clamp(min=1)).abs()
    tokens, rows = mask.sum(), (lengths > 0).sum()
    return {
        "sampler_logprob_gap": (gap.abs().sum(), tokens),
        "sampler_logprob_gap_squared": (gap.square().sum(), tokens),
        "sampler_sequence_gap": (sequences.sum(), rows),
        "sampler_sequence_gap_squared": (sequences.square().sum(), rows),
    }


def update_scalars(sums: Mapping[str, tuple[float, float]]) -> dict[str, float]:
    """Means, standard deviations and fractions under their tags."""
    scalars: dict[str, float] = {"loss": sums["loss"][0]}
    for name, (total, count) in sums.items():
        if name == "loss":
            continue
        mean = total / count if count else 0.0
        if name in _ROOTS:
            scalars[_ROOTS[name]] = mean**0.5
        elif name in _SQUARES:
            base, tag = _SQUARES[name]
            first, n = sums[base]
            scalars[tag] = max(mean - (first / n if n else 0.0) ** 2, 0.0) ** 0.5
            if name == "ratio_squared":  # Kish: (sum w)^2 / sum w^2, as a share of the samples
                scalars["ratio/effective_sample_size"] = first**2 / (n * total) if n and total else 0.0
        else:
            scalars[_TAGS.get(name, f"objective/{name}")] = mean
    return scalars
