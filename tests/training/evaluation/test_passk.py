from __future__ import annotations

import itertools
import math

import pytest
import torch

from gspo_lightning.training.evaluation.metrics import AverageAtK, PassAtK, pass_at_k
from tests.runs.ranks import two_ranks


def rows(*counts: tuple[int, int]) -> torch.Tensor:
    """[P, n] bool with c of n correct in each row."""
    return torch.tensor([[i < c for i in range(n)] for c, n in counts])


@pytest.mark.parametrize(
    ("c", "n", "k", "expected"),
    [
        (0, 4, 2, 0.0),
        (1, 4, 1, 1 / 4),
        (1, 4, 2, 1 / 2),  # 1 - C(3,2)/C(4,2) = 1 - 3/6
        (2, 4, 2, 5 / 6),  # 1 - C(2,2)/C(4,2) = 1 - 1/6
        (3, 4, 2, 1.0),  # two draws cannot both be the one wrong answer
        (3, 10, 5, 11 / 12),  # 1 - C(7,5)/C(10,5) = 1 - 21/252
        (1, 4, 4, 1.0),
    ],
)
def test_one_prompt_matches_hand_computed_values(c: int, n: int, k: int, expected: float) -> None:
    assert float(pass_at_k(rows((c, n)), k)) == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize("n", [1, 2, 5, 7])
def test_equals_the_share_of_subsets_with_a_correct_response(n: int) -> None:
    for c, k in itertools.product(range(n + 1), range(1, n + 1)):
        subsets = list(itertools.combinations(range(n), k))
        hits = sum(any(i < c for i in subset) for subset in subsets)
        assert float(pass_at_k(rows((c, n)), k)) == pytest.approx(hits / len(subsets), abs=1e-14)


def test_is_stable_where_binomial_coefficients_overflow_a_float() -> None:
    n, c, k = 3000, 3, 1000
    exact = 1 - math.comb(n - c, k) / math.comb(n, k)  # Python's integers are exact
    assert float(pass_at_k(rows((c, n)), k)) == pytest.approx(exact, rel=1e-12)


def test_the_order_of_responses_does_not_matter() -> None:
    first = torch.tensor([[True, False, False, True]])
    assert torch.equal(pass_at_k(first, 2), pass_at_k(first.flip(1), 2))


def test_prompts_weigh_the_same_when_n_differs_between_updates() -> None:
    metric = PassAtK(2)
    metric.update(rows((1, 4), (0, 4)))  # 1/2, 0
    metric.update(rows((2, 2)))  # 1
    assert float(metric.compute()) == pytest.approx(0.5)
    average = AverageAtK()
    average.update(rows((1, 4), (0, 4)))
    average.update(rows((2, 2)))
    assert float(average.compute()) == pytest.approx((0.25 + 0 + 1) / 3)


def test_average_is_the_accuracy_when_each_prompt_has_one_response() -> None:
    metric = AverageAtK()
    metric.update(torch.tensor([[True], [False], [True], [True]]))
    assert float(metric.compute()) == 0.75


def test_how_prompts_are_batched_does_not_matter() -> None:
    correct = torch.rand(37, 6, generator=torch.Generator().manual_seed(0)) < 0.3
    whole, parts = PassAtK(3), PassAtK(3)
    whole.update(correct)
    for part in correct.split([1, 0, 20, 16]):
        parts.update(part)
    assert float(whole.compute()) == pytest.approx(float(parts.compute()), abs=1e-15)
    whole.reset()
    assert float(whole.prompts) == 0


def test_counts_stay_exact_beyond_what_float32_can_count() -> None:
    metric = AverageAtK()
    metric.prompts += 2**24
    metric.update(torch.tensor([[False]]))
    assert float(metric.prompts) == 2**24 + 1
    assert metric.compute().dtype == torch.float64


@pytest.mark.parametrize(
    ("correct", "k"),
    [
        (torch.ones(2, 3, dtype=torch.bool), 4),  # fewer responses than draws
        (torch.ones(2, 3), 1),  # not bool
        (torch.ones(3, dtype=torch.bool), 1),  # not [P, n]
    ],
)
def test_passk_refuses_too_few_responses_and_wrong_tensors(correct: torch.Tensor, k: int) -> None:
    metric = PassAtK(k)
    with pytest.raises(ValueError, match=r"responses per prompt|must be bool"):
        metric.update(correct)


def test_k_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="1 or more"):
        PassAtK(0)


def _rank(rank: int) -> list[float]:
    metrics = [PassAtK(2), AverageAtK()]
    for metric in metrics:
        metric.update(rows((1, 4), (0, 4), (4, 4)) if rank == 0 else rows((1, 2)))
    return [float(metric.compute()) for metric in metrics]


def test_two_ranks_give_what_one_process_gives() -> None:
    one = [PassAtK(2), AverageAtK()]
    for metric in one:
        metric.update(rows((1, 4), (0, 4), (4, 4)))
        metric.update(rows((1, 2)))
    expected = [float(metric.compute()) for metric in one]
    assert expected == pytest.approx([(0.5 + 0 + 1 + 1) / 4, (0.25 + 0 + 1 + 0.5) / 4])
    assert two_ranks(_rank) == [expected, expected]
