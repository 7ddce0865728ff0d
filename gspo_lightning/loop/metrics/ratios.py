"""Ratio distributions: of sequences and of tokens, by the sign of the advantage, and by mini-batch of the iteration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gspo_lightning.loop.metrics.sums import RATIO_EDGES, percentile, ratio_bins, tally

BINS = RATIO_EDGES.numel() + 1
SIGNS = ("negative", "zero", "positive")
HISTOGRAMS = {
    "ratio/histogram_positive": ("sequence", "positive"),
    "ratio/histogram_negative": ("sequence", "negative"),
    "ratio/token_histogram": ("token", None),
    "ratio/token_histogram_positive": ("token", "positive"),
    "ratio/token_histogram_negative": ("token", "negative"),
}
"""Tag -> (level, sign of the advantage; None: all)."""
PERCENTILES = {"sequence": (5, 50, 95), "token": (1, 50, 99)}
PER_PLACE = {
    "ratio/effective_sample_size": "effective_sample_size",
    "ratio/log_sequence_std": "log_sequence_std",
    "clip/tokens": "clip_tokens",
    "kl/old_new_k3": "kl_old_new_k3",
}
"""Metrics also logged by position of the mini-batch in its iteration: tag -> short name."""


@torch.no_grad()
def ratio_counts(logprobs: Tensor, old_logprobs: Tensor, mask: Tensor, advantages: Tensor) -> dict[str, Tensor]:
    """Return histograms of log s_i and of token log-ratios, each [3 * BINS]: negative, zero, positive advantage.

    Args:
        logprobs: [N, T] nats.
        old_logprobs: [N, T] nats.
        mask: [N, T] bool.
        advantages: [N], or [N, T]: a sequence then has the sign of their sum.
    """
    difference = torch.where(mask, logprobs - old_logprobs, 0.0)
    lengths = mask.sum(-1)
    sequences = difference.sum(-1) / lengths.clamp(min=1)
    per_token = advantages.unsqueeze(-1).expand_as(mask) if advantages.ndim == 1 else advantages
    per_row = advantages if advantages.ndim == 1 else torch.where(mask, advantages, 0.0).sum(-1)
    return {
        "sequence_by_sign": _counts(sequences, per_row, lengths > 0),
        "token_by_sign": _counts(difference, per_token, mask),
    }


def _counts(log_ratios: Tensor, advantages: Tensor, counted: Tensor) -> Tensor:
    sign_index = advantages.sign().long() + 1  # of SIGNS
    return tally(ratio_bins(log_ratios) + BINS * sign_index, counted, len(SIGNS) * BINS)


def ratio_histograms(vectors: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    """Return tag -> counts [BINS] over :data:`gspo_lightning.loop.metrics.sums.RATIO_EDGES`, from reduced vectors."""
    histograms = {}
    for tag, (level, sign) in HISTOGRAMS.items():
        by_sign = _by_sign(vectors[f"{level}_by_sign"])
        histograms[tag] = list(by_sign[sign]) if sign is not None else _added(by_sign)
    return histograms


def ratio_scalars(vectors: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return percentiles under their tags; a sign that no sequence or token has is left out."""
    scalars = {}
    for level, percents in PERCENTILES.items():
        by_sign = _by_sign(vectors[f"{level}_by_sign"])
        histograms = {"": _added(by_sign), "positive_": by_sign["positive"], "negative_": by_sign["negative"]}
        for prefix, counts in histograms.items():
            if not sum(counts):
                continue
            for percent in percents:
                scalars[f"ratio/log_{level}_{prefix}p{percent:02d}"] = percentile(counts, percent / 100)
    return scalars


def by_mini_batch(scalars: Mapping[str, float], place: int) -> dict[str, float]:
    """Return the same numbers under tags with the position of the mini-batch in its iteration, from 0."""
    return {f"by_mini_batch/{name}_{place}": scalars[tag] for tag, name in PER_PLACE.items() if tag in scalars}


def _by_sign(counts: Sequence[float]) -> dict[str, Sequence[float]]:
    return {sign: counts[i * BINS : (i + 1) * BINS] for i, sign in enumerate(SIGNS)}


def _added(by_sign: Mapping[str, Sequence[float]]) -> list[float]:
    return [sum(counts) for counts in zip(*by_sign.values(), strict=True)]
