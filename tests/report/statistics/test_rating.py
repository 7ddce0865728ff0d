"""CodeElo's rating: golden values, and the expectation over orders against enumeration."""

from __future__ import annotations

from itertools import permutations, product

import pytest

from gspo_lightning.report.statistics.rating import ATTEMPTS, Contest, Place, first_accepted, outcomes, rating

OTHERS = [1000.0 + 5 * j for j in range(300)]


def test_the_place_that_a_rating_is_expected_to_reach() -> None:
    for rank in (50, 150, 299):
        expected = [1 + sum(1 / (1 + 10 ** ((r - other) / 400)) for other in OTHERS) for r in (rating(rank, OTHERS),)]
        assert expected[0] >= rank  # the lower end of the bisection
        above = 1 + sum(1 / (1 + 10 ** ((rating(rank, OTHERS) + 1 - other) / 400)) for other in OTHERS)
        assert above < rank


def test_impossible_places() -> None:
    for rank, others in ((0, OTHERS), (1, [])):
        with pytest.raises(ValueError):
            rating(rank, others)


@pytest.mark.parametrize(("accepted", "answers"), [(0, 5), (1, 5), (3, 5), (5, 5), (1, 1)])
def test_every_order_is_counted(accepted: int, answers: int) -> None:
    orders = list(permutations([True] * accepted + [False] * (answers - accepted)))
    for attempt, chance in enumerate(first_accepted(accepted, answers)):
        seen = sum(order[attempt] and not any(order[:attempt]) for order in orders)
        assert chance == pytest.approx(seen / len(orders), abs=1e-15)


def test_no_more_than_eight_are_submitted() -> None:
    chances = first_accepted(1, 32)
    assert len(chances) == ATTEMPTS
    assert sum(chances) == pytest.approx(8 / 32)


def test_a_contest_by_enumeration() -> None:
    """Two problems of 500 and 60 points: three orders each; 60 points less 50 and less 100, which is none."""
    points: dict[str, float | None] = {"A": 500.0, "B": 60.0}
    standings = [Place(600.0 - 10 * j) for j in range(60)]
    contest = Contest(points, standings, OTHERS)
    results = {"A": (1, 3), "B": (1, 3)}
    ranks = []
    for a, b in product(range(3), range(3)):
        score = (500 - 50 * a) + max(0, 60 - 50 * b)
        ranks.append(1 + sum(600 - 10 * j > score for j in range(60)))
    wanted = sum(rating(rank, OTHERS) for rank in ranks) / 9
    assert contest.expected_rating(results) == pytest.approx(wanted)


def test_solved_problems_and_penalty() -> None:
    contest = Contest({"A": None, "B": None}, [Place(2, 10), Place(1, 0), Place(1, 10), Place(0, 0)], OTHERS)
    assert contest.rank(Place(1, 10)) == 3  # a tie shares the better place
    assert contest.rank(Place(2, 0)) == 1
    assert dict(outcomes(contest.points, {"A": (1, 2)})) == {Place(1.0, 0.0): 0.5, Place(1.0, 10.0): 0.5}


def test_an_unsolved_contest_is_the_last_place() -> None:
    contest = Contest({"A": 500.0}, [Place(500.0)] * 299, OTHERS)
    assert contest.rank(Place(0.0)) == 300
    assert contest.expected_rating({}) == 383
