"""Shares of an iteration in whole prompts: by largest remainders, with nothing owed in the end."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest

from gspo_lightning.data.prompts.weighted import Quotas, largest_remainder


def counts(quotas: Quotas, iterations: range) -> list[list[int]]:
    return [[quota.count for quota in quotas.of(i)] for i in iterations]


@pytest.mark.parametrize(
    ("shares", "total", "wanted"),
    [
        ([Fraction(6), Fraction(2)], 8, [6, 2]),
        ([Fraction(16, 3), Fraction(8, 3)], 8, [5, 3]),  # remainders 1/3 and 2/3
        ([Fraction(1, 2), Fraction(1, 2), Fraction(3)], 4, [1, 0, 3]),  # equal ones: the first
        ([Fraction(-1, 4), Fraction(5, 4), Fraction(1)], 2, [0, 1, 1]),
        ([Fraction(-3, 2), Fraction(7, 4), Fraction(7, 4)], 2, [0, 1, 1]),  # raised to 0, so another gives way
    ],
)
def test_shares_become_whole_numbers(shares: list[Fraction], total: int, wanted: list[int]) -> None:
    assert largest_remainder(shares, total) == wanted


def test_rounding_of_quotas_is_made_up_in_later_iterations() -> None:
    """Weights 2 and 1 of 8 prompts: 5 1/3 and 2 2/3; the second iteration is owed 5 2/3 and 2 1/3."""
    assert counts(Quotas([2, 1], 8, [99, 99]), range(6)) == [[5, 3], [6, 2], [5, 3]] * 2


@pytest.mark.parametrize("seed", range(20))
def test_deviations_never_reach_a_prompt_and_any_iteration_is_found_alone(seed: int) -> None:
    dice = random.Random(seed)
    per_iteration = dice.choice([8, 16, 31])
    weights = [dice.choice([1, 2, 3, 0.7, 2.5]) for _ in range(dice.randint(2, 4))]
    assert min(weights) / sum(weights) * per_iteration >= 0.5
    found = counts(Quotas(weights, per_iteration, [1000] * len(weights)), range(200))
    assert all(sum(row) == per_iteration and min(row) >= 0 for row in found)
    totals = [0.0] * len(weights)
    for i, row in enumerate(found):
        totals = [a + b for a, b in zip(totals, row, strict=True)]
        exact = [(i + 1) * per_iteration * weight / sum(weights) for weight in weights]
        assert max(abs(a - b) for a, b in zip(totals, exact, strict=True)) < 1
    other = Quotas(weights, per_iteration, [1000] * len(weights))
    for i in (150, 3, 151, 4, 0):
        assert [quota.count for quota in other.of(i)] == found[i]


def test_a_rare_source_is_not_forgotten() -> None:
    """1 of 100 at 8 prompts an iteration: 8 prompts in 100 iterations."""
    found = counts(Quotas([99, 1], 8, [500, 50]), range(100))
    assert sum(row[1] for row in found) == 8
    assert {row[1] for row in found} == {0, 1}


def test_a_pass_over_a_source_ends_where_the_next_quota_does_not_fit() -> None:
    """Of 7 prompts 3 an iteration: two quotas a pass."""
    quotas = Quotas([1, 1], 6, [7, 100])
    assert [(q.number, q.offset) for q in (quotas.of(i)[0] for i in range(5))] == [
        (0, 0),
        (0, 3),
        (1, 0),
        (1, 3),
        (2, 0),
    ]


def test_the_largest_quota_is_known_before() -> None:
    assert Quotas([2, 1], 8, [99, 99]).largest() == [6, 3]
    assert Quotas([1, 1], 4, [2, 2]).largest() == [2, 2]
