"""Differences between two models on the same problems."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from gspo_lightning.report.statistics.paired import LEVEL, difference


def test_p_values_by_hand() -> None:
    """6 of 6: 2 / 2^6. 5 of 6 for B: signs with |sum| >= 4 are 2 (1 + 6) of 64."""
    assert difference([0.0] * 6, [1.0] * 6).p == 2 / 64
    assert difference([0.0] * 5 + [1.0], [1.0] * 5 + [0.0]).p == 14 / 64
    assert difference([0.5, 0.2], [0.5, 0.2]).p == 1.0


def test_draws_agree_with_counting() -> None:
    """17 problems are drawn; 14 to 3: 2 * sum_{j <= 3} C(17, j) / 2^17 by the binomial."""
    found = difference([0.0] * 14 + [1.0] * 3, [1.0] * 14 + [0.0] * 3)
    assert found.p == pytest.approx(2 * (1 + 17 + 136 + 680) / 2**17, abs=0.001)
    assert (found.better, found.worse, found.verdict) == (14, 3, "better")


def test_memory_is_bounded_for_many_problems() -> None:
    """2,000 problems that differ: 10,000 draws at once took 160 MB of float64, a piece takes 8 MB and its products."""
    values = np.random.default_rng(1).integers(0, 2, 2000)
    tracemalloc.start()
    try:
        found = difference(values.tolist(), (1 - values).tolist())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found.n == 2000
    assert peak < 40e6


def test_ten_points_on_thirty_problems_are_not_enough_to_tell() -> None:
    """Three problems more of 30, 9 changed: 6 to 3."""
    a = [1.0] * 12 + [0.0] * 18
    b = [1.0] * 9 + [0.0] * 3 + [1.0] * 6 + [0.0] * 12
    found = difference(a, b)
    assert found.value == pytest.approx(0.1)
    assert found.verdict == "not enough problems to tell"
    assert found.low <= 0 <= found.high  # type: ignore[operator]


def test_no_difference_is_not_known_to_be_none() -> None:
    found = difference([1.0] * 30, [1.0] * 30)
    assert (found.low, found.high, found.verdict) == (-0.1, 0.1, "no difference seen")


@pytest.mark.thorough
def test_a_claim_of_no_difference_is_rare() -> None:
    """Two models alike, 30 problems with 8 answers each: false claims stay at the level (standard error .018)."""
    random, claims = np.random.Generator(np.random.Philox(3)), 0
    for _ in range(150):
        chance = random.beta(0.5, 0.5, 30)[:, None]
        a, b = ((random.random((30, 8)) < chance).mean(axis=1) for _ in range(2))
        claims += difference(a.tolist(), b.tolist()).p < LEVEL
    assert claims / 150 <= 0.1


def test_order_and_number_matter() -> None:
    with pytest.raises(ValueError, match="the same problems"):
        difference([1.0], [1.0, 0.0])
