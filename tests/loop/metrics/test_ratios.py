"""Histograms and percentiles of ratios by the sign of the advantage."""

from __future__ import annotations

import pytest
import torch

from gspo_lightning.loop.metrics.ratios import BINS, by_mini_batch, ratio_counts, ratio_histograms, ratio_scalars
from gspo_lightning.loop.metrics.sums import MetricSums, ratio_histogram

MASK = torch.tensor([[True, True], [True, False], [True, True]])
OLD = torch.tensor([[-1.0, -1.0], [-2.0, 9.0], [-0.5, -0.5]])
NEW = torch.tensor([[-0.9, -1.3], [-2.0, 7.0], [-0.5, -0.48]])  # log s_i: -0.1, 0, 0.01
ADVANTAGES = torch.tensor([-1.0, 0.0, 2.0])


def reduced(advantages: torch.Tensor) -> dict[str, list[float]]:
    sums = MetricSums("full")
    for name, counts in ratio_counts(NEW, OLD, MASK, advantages).items():
        sums.add_vector(name, counts)
    sums.add({"loss": (torch.tensor(0.0), torch.tensor(0.0))})
    return sums.reduce()[1]


def test_every_sequence_and_token_is_counted_once_under_its_sign() -> None:
    vectors = reduced(ADVANTAGES)
    assert [sum(vectors["sequence_by_sign"][i * BINS : (i + 1) * BINS]) for i in range(3)] == [1, 1, 1]
    assert [sum(vectors["token_by_sign"][i * BINS : (i + 1) * BINS]) for i in range(3)] == [2, 1, 2]
    histograms = ratio_histograms(vectors)
    assert histograms["ratio/token_histogram"] == ratio_histogram((NEW - OLD)[MASK]).tolist()
    assert histograms["ratio/histogram_positive"] == ratio_histogram((NEW - OLD)[2:].mean(-1)).tolist()


def test_percentiles_are_the_edges_nearer_to_0() -> None:
    scalars = ratio_scalars(reduced(ADVANTAGES))
    assert scalars["ratio/log_sequence_negative_p50"] == pytest.approx(-0.1, rel=0.34)
    assert scalars["ratio/log_sequence_negative_p50"] >= -0.1
    assert 0.0074 < scalars["ratio/log_sequence_positive_p50"] <= 0.01
    assert scalars["ratio/log_sequence_p50"] == 0
    assert scalars["ratio/log_token_p99"] == pytest.approx(0.1, rel=0.34)
    assert scalars["ratio/log_token_p01"] == pytest.approx(-0.3, rel=0.34)


def test_a_sign_that_is_absent_has_no_percentile() -> None:
    scalars = ratio_scalars(reduced(torch.tensor([1.0, 1.0, 1.0])))
    assert not [tag for tag in scalars if "negative" in tag]


def test_advantages_per_token_give_tokens_their_own_sign() -> None:
    vectors = reduced(torch.tensor([[1.0, -3.0], [1.0, -9.0], [1.0, 1.0]]))
    assert [sum(vectors["token_by_sign"][i * BINS : (i + 1) * BINS]) for i in range(3)] == [1, 0, 4]
    assert [sum(vectors["sequence_by_sign"][i * BINS : (i + 1) * BINS]) for i in range(3)] == [1, 0, 2]


def test_by_mini_batch_repeats_what_is_there() -> None:
    assert by_mini_batch({"clip/tokens": 0.5, "loss": 1.0}, 3) == {"by_mini_batch/clip_tokens_3": 0.5}
