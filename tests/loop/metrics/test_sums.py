"""Sums and counts, maxima and the histogram of s_i."""

from __future__ import annotations

import math

import pytest
import torch

from gspo_lightning.loop.metrics.sums import RATIO_EDGES, MetricSums, ratio_histogram, ratio_percentiles
from gspo_lightning.loop.metrics.update import update_scalars


def scalar(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64)


def test_micro_batches_add_up_to_sums_and_counts_not_means_of_means() -> None:
    sums = MetricSums()
    sums.add({"x": (scalar(1.0), scalar(1.0))})
    sums.add({"x": (scalar(0.0), scalar(3.0))})
    sums.add_max("m", torch.tensor([1.0, 4.0, 9.0]), torch.tensor([True, True, False]))
    sums.add_max("m", torch.tensor([2.0]), torch.tensor([True]))
    sums.add_max("none", torch.tensor([2.0]), torch.tensor([False]))
    sums.add_vector("v", torch.tensor([1.0, 0.0]))
    sums.add_vector("v", torch.tensor([1.0, 2.0]))
    assert sums.reduce() == ({"x": (1.0, 4.0)}, {"v": [2.0, 2.0]}, {"m": 4.0, "none": 1.0})


def test_histogram_counts_every_ratio_once() -> None:
    values = torch.tensor([0.0, 3e-4, -3e-4, 50.0, -50.0, 1e-9])
    counts = ratio_histogram(values)
    assert counts.shape == (RATIO_EDGES.numel() + 1,)
    assert counts.sum() == len(values)
    assert counts[0] == counts[-1] == 1.0


def test_percentiles_bracket_the_true_ones() -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(5000, generator=generator) * 0.01
    found = ratio_percentiles(ratio_histogram(values).tolist())
    step = 10 ** (1 / 8)  # eight bins per decade
    for name, q in (("ratio/log_sequence_p05", 0.05), ("ratio/log_sequence_p95", 0.95)):
        true = float(torch.quantile(values, q))
        assert math.copysign(1, found[name]) == math.copysign(1, true)
        assert abs(found[name]) <= abs(true) <= abs(found[name]) * step * 1.02


def test_percentiles_of_unchanged_policies_are_zero() -> None:
    assert ratio_percentiles(ratio_histogram(torch.zeros(64)).tolist()) == {
        "ratio/log_sequence_p05": 0.0, "ratio/log_sequence_p95": 0.0,
    }  # fmt: skip


def test_effective_sample_size_by_hand() -> None:
    weights = [1.0, 1.0, 2.0]
    sums = {
        "loss": (0.5, 0.0),
        "ratio": (sum(weights), 3.0),
        "ratio_squared": (sum(w * w for w in weights), 3.0),
    }
    scalars = update_scalars(sums)
    assert scalars["ratio/effective_sample_size"] == pytest.approx(16 / 18)
    assert scalars["ratio/mean"] == pytest.approx(4 / 3)
    assert scalars["ratio/std"] == pytest.approx((2.0 - (4 / 3) ** 2) ** 0.5)
    assert scalars["loss"] == 0.5
