"""Metric sums over micro-batches and ranks: one packed reduction per update, never a mean of means."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Literal

import torch
from torch import Tensor

from gspo_lightning.core.distributed import all_max, all_sum
from gspo_lightning.loop.metrics.tokens import TokenValues

Level = Literal["full", "basic", "off"]
"""Amount of measurement: see :class:`gspo_lightning.loop.metrics.update_metrics.UpdateMetrics`."""

_DECADES = torch.logspace(-6, 1, 57, dtype=torch.float64)
RATIO_EDGES: Tensor = torch.cat([-_DECADES.flip(0), torch.zeros(1, dtype=torch.float64), _DECADES])
"""Bin edges of log s_i, finer around 0: the paper's clip range is 3e-4, a diverged run is at 1 and beyond."""


@functools.cache
def _edges(device: torch.device) -> Tensor:
    return RATIO_EDGES.to(device)


def ratio_bins(log_ratios: Tensor) -> Tensor:
    """Return the bin of each log-ratio, in the same shape: the number of edges below it."""
    return torch.bucketize(log_ratios.double(), _edges(log_ratios.device))


def tally(places: Tensor, counted: Tensor, bins: int) -> Tensor:
    """Count the ``places`` with ``counted`` set (bool, the same shape) that are 0, 1 ... ``bins - 1``, in float64.

    Uses neither a selection nor ``bincount``: the host would wait for the size of the result.
    """
    counts = torch.zeros(bins, dtype=torch.float64, device=places.device)
    return counts.index_add_(0, places.flatten(), counted.flatten().double())


def ratio_histogram(log_ratios: Tensor, counted: Tensor | None = None) -> Tensor:
    """Count log-ratios per bin, [len(RATIO_EDGES) + 1]; counts add up over micro-batches and ranks.

    Args:
        log_ratios: [N] nats.
        counted: [N] bool; None: all.
    """
    counted = torch.ones_like(log_ratios, dtype=torch.bool) if counted is None else counted
    return tally(ratio_bins(log_ratios), counted, RATIO_EDGES.numel() + 1)


def percentile(counts: Sequence[float], share: float) -> float:
    """Return a percentile of log-ratios from their histogram: the edge of its bin nearer to 0, so never overstated.

    Args:
        counts: of :func:`ratio_histogram`, not all 0.
        share: in (0, 1): 0.05 is the 5th percentile.
    """
    rank = share * sum(counts)
    cumulative = 0.0
    for i, count in enumerate(counts):
        cumulative += count
        if count and cumulative >= rank:
            below = RATIO_EDGES[max(i - 1, 0)]  # the first and the last bin are open: they have one edge
            above = RATIO_EDGES[min(i, RATIO_EDGES.numel() - 1)]
            return float(min(below, above, key=abs))
    raise ValueError("an empty histogram has no percentiles")


def ratio_percentiles(counts: Sequence[float]) -> dict[str, float]:
    """Return the 5th and 95th percentile of log s_i from its histogram, under their tags; 0 without sequences."""
    shares = {"ratio/log_sequence_p05": 0.05, "ratio/log_sequence_p95": 0.95}
    return {tag: percentile(counts, share) if any(counts) else 0.0 for tag, share in shares.items()}


NEEDED = {
    "loss", "sampler_logprob_gap_squared", "sampler_sequence_gap_squared", "correction_weight",
    "correction_weight_squared",
}  # fmt: skip
"""Sums that are kept at every level: noise decides the source of old log-probabilities, weights can scale a step."""


def reduce_sums(sums: Mapping[str, tuple[float, float]], device: torch.device) -> dict[str, tuple[float, float]]:
    """Add (sum, count) pairs of numbers over all ranks, name by name, in one collective.

    For numbers on the host; :class:`MetricSums` adds up tensors without waiting for the device.

    Args:
        sums: name -> (sum, count); every rank must have the same names in the same order.
        device: for the collective.
    """
    packed = torch.tensor(list(sums.values()), dtype=torch.float64, device=device)  # [names, 2]
    totals = all_sum(packed).tolist()
    return {name: (total, count) for name, (total, count) in zip(sums, totals, strict=True)}


class MetricSums:
    """Accumulator of ``{name: (sum, count)}`` on the device, reduced over ranks in one collective.

    ``level`` says how much to measure; at ``off`` only the loss, maxima and the sums that training depends on
    (:data:`NEEDED`) are kept. ``tokens`` keeps the values of single tokens, if some rows are recorded.
    """

    def __init__(self, level: Level = "basic", tokens: TokenValues | None = None) -> None:
        self.level = level
        self.tokens = tokens
        self._sums: dict[str, Tensor] = {}
        self._vectors: dict[str, Tensor] = {}
        self._maxima: dict[str, Tensor] = {}

    def add(self, sums: Mapping[str, tuple[Tensor, Tensor]]) -> None:
        """Add the sums and counts of one micro-batch (0-dim tensors)."""
        for name, (total, count) in sums.items():
            if self.level == "off" and name not in NEEDED:
                continue
            pair = torch.stack([total.detach().double(), count.detach().double()])
            self._sums[name] = self._sums[name] + pair if name in self._sums else pair

    def add_vector(self, name: str, values: Tensor) -> None:
        """Add a vector of counts (a histogram)."""
        if self.level == "off":
            return
        self._vectors[name] = self._vectors[name] + values if name in self._vectors else values

    def add_max(self, name: str, ratios: Tensor, counted: Tensor) -> None:
        """Keep the largest ratio; 1 is reported if none is counted."""
        largest = torch.where(counted, ratios.detach().double(), -math.inf).max()
        self._maxima[name] = torch.maximum(self._maxima[name], largest) if name in self._maxima else largest

    def reduce(self) -> tuple[dict[str, tuple[float, float]], dict[str, list[float]], dict[str, float]]:
        """Reduce to sums and counts, vectors, and maxima over all ranks.

        Takes one collective for the sums and one for the maxima. Every rank must have added the same names.
        """
        if not self._sums:
            return {}, {}, {}
        names = sorted(self._sums)
        vector_names = sorted(self._vectors)
        packed = torch.cat([self._sums[name] for name in names] + [self._vectors[name] for name in vector_names])
        values = iter(all_sum(packed).tolist())  # the host waits for the device once
        pairs = {name: (next(values), next(values)) for name in names}
        vectors = {name: list(islice(values, self._vectors[name].numel())) for name in vector_names}
        return pairs, vectors, self._reduced_maxima()

    def _reduced_maxima(self) -> dict[str, float]:
        if not self._maxima:
            return {}
        names = sorted(self._maxima)
        largest = all_max(torch.stack([self._maxima[name] for name in names])).tolist()
        return {name: 1.0 if value == -math.inf else value for name, value in zip(names, largest, strict=True)}
