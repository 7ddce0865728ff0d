"""pass@k, G-Pass@k and votes against enumeration."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch

from gspo_lightning.report.statistics.samples import g_pass_at_k, majority, mg_pass_at_k, pass_at_k
from gspo_lightning.training.evaluation import metrics


@pytest.mark.parametrize("right", range(7))
def test_every_draw_is_counted(right: int) -> None:
    answers = [True] * right + [False] * (6 - right)
    for k in range(1, 7):
        draws = list(combinations(answers, k))
        assert pass_at_k(right, 6, k) == pytest.approx(sum(any(d) for d in draws) / len(draws), abs=1e-15)
        for share in (0.25, 0.5, 0.75, 1.0):
            wanted = sum(sum(d) >= share * k for d in draws) / len(draws)
            assert g_pass_at_k(right, 6, k, share) == pytest.approx(wanted, abs=1e-15)
        assert pass_at_k(right, 6, k) == pytest.approx(float(metrics.pass_at_k(torch.tensor([answers]), k)), abs=1e-15)


def test_large_numbers_do_not_overflow() -> None:
    assert pass_at_k(5, 10_000, 64) == pytest.approx(1 - (1 - 64 / 10_000) ** 5, abs=1e-4)


@pytest.mark.parametrize(("right", "answers", "k"), [(5, 4, 1), (1, 4, 5), (1, 4, 0), (-1, 4, 1)])
def test_impossible_counts(right: int, answers: int, k: int) -> None:
    with pytest.raises(ValueError):
        pass_at_k(right, answers, k)


def test_the_mean_over_shares_is_twice_the_area_above_a_half() -> None:
    """6 of 8 right, 4 draws: at least 3 right in 55 of 70 draws, all 4 in 15; (2 / 4) (55 + 15) / 70."""
    assert g_pass_at_k(6, 8, 4, 0.75) == pytest.approx(55 / 70)
    assert g_pass_at_k(6, 8, 4, 1.0) == pytest.approx(15 / 70)
    assert mg_pass_at_k(6, 8, 4) == pytest.approx(0.5)
    assert [mg_pass_at_k(right, 8, 8) for right in (4, 5, 8)] == pytest.approx([0.0, 0.25, 1.0])
    with pytest.raises(ValueError, match="at least 2"):
        mg_pass_at_k(1, 1, 1)


@pytest.mark.parametrize(("right", "answers", "k"), [(5, 5, 5), (3, 3, 3), (4, 7, 5), (6, 9, 3), (5, 8, 4)])
def test_the_mean_over_shares_is_the_integral_for_odd_and_even_k(right: int, answers: int, k: int) -> None:
    """The area under G-Pass@k from a half to all, by 10,000 rectangles, divided by its width."""
    steps = 10_000
    middles = [0.5 + (i + 0.5) / (2 * steps) for i in range(steps)]
    mean = sum(g_pass_at_k(right, answers, k, share) for share in middles) / steps
    assert mg_pass_at_k(right, answers, k) == pytest.approx(mean, abs=1e-3)


def test_all_right_is_a_mean_of_one() -> None:
    assert [mg_pass_at_k(n, n, n) for n in range(2, 40)] == [1.0] * 38
    # 4 of 7 right: 3 right ones of 5 in 12 of 21 draws, 4 in 3. Shares from .5 to .6 need 3, from .6 to .8 need 4
    assert mg_pass_at_k(4, 7, 5) == pytest.approx(2 * (0.1 * 15 / 21 + 0.2 * 3 / 21))


def test_majority_vote_shares_ties_and_ignores_missing_answers() -> None:
    assert majority(["1", "1", "2"], [True, True, False]) == 1.0
    assert majority(["1", "2", "2"], [True, False, False]) == 0.0
    assert majority(["1", "2", None, None, None], [True, False, False, False, False]) == 0.5  # no answer, no vote
    assert majority([None, None], [False, False]) == 0.0
    with pytest.raises(ValueError):
        majority(["1"], [])
