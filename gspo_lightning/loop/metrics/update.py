"""Update metrics: from the sums of one update to logged scalars (tags: docs/metrics.md)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from gspo_lightning.core.metric_table.reading import Mean, Reading
from gspo_lightning.core.metric_table.spec import METRICS
from gspo_lightning.core.types import MicroBatch


def _by_sum() -> dict[str, list[tuple[str, Reading]]]:
    readings: dict[str, list[tuple[str, Reading]]] = {}
    for spec in METRICS:
        if spec.reading is not None:
            readings.setdefault(spec.reading.name, []).append((spec.tag, spec.reading))
    return readings


BY_SUM = _by_sum()
"""Name of a sum -> tags that are computed from it, with their readings."""


def sequence_log_ratios(logprobs: Tensor, old_logprobs: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return log s_i [N] (GSPO, Eq. 6) and non-empty rows [N] bool.

    log s_i is the mean over response tokens of log pi - log pi_old.
    """
    difference = torch.where(mask, logprobs - old_logprobs, 0.0)
    lengths = mask.sum(-1)
    return difference.sum(-1) / lengths.clamp(min=1), lengths > 0


def measure_mismatch(batch: MicroBatch, old_logprobs: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """Return the gap between sampler and trainer log-probabilities for the same weights, as sums and counts.

    Per token, and per sequence the |mean log-ratio|, which compares with a sequence-level clip range. Tokens of an
    older version are left out. Nothing is measured if the old log-probabilities *are* the sampler's.
    """
    if batch.behaviour_logprobs is None or old_logprobs is batch.behaviour_logprobs:
        return {}
    mask = batch.response_mask if batch.stale is None else batch.response_mask & ~batch.stale
    gap = torch.where(mask, old_logprobs - batch.behaviour_logprobs, 0.0).double()
    lengths = mask.sum(-1)
    sequence_gap = (gap.sum(-1) / lengths.clamp(min=1)).abs()
    token_count = mask.sum()
    row_count = (lengths > 0).sum()
    return {
        "sampler_logprob_gap": (gap.abs().sum(), token_count),
        "sampler_logprob_gap_squared": (gap.square().sum(), token_count),
        "sampler_sequence_gap": (sequence_gap.sum(), row_count),
        "sampler_sequence_gap_squared": (sequence_gap.square().sum(), row_count),
    }


def update_scalars(sums: Mapping[str, tuple[float, float]]) -> dict[str, float]:
    """Return means, standard deviations and fractions under their tags (docs/metrics.md).

    Args:
        sums: of an update, or of several: name -> (sum, count); includes ``loss``. A name that no metric is read from
            belongs to a custom objective: its mean is logged as ``objective/<name>``.
    """
    scalars: dict[str, float] = {}
    for name in sorted(sums, key=lambda name: name != "loss"):  # the loss first
        for tag, reading in BY_SUM.get(name) or [(f"objective/{name}", Mean(name))]:
            scalars[tag] = reading.read(sums)
    return scalars
