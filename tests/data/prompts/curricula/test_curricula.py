"""Which prompts curricula choose, by values computed by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gspo_lightning.core.errors import UserError
from gspo_lightning.data.prompts.curricula import Curriculum, DifficultyPools, Informative, Seen, TargetRate, Uniform

NAN = math.nan


def begun(curriculum: Curriculum, difficulty: list[float]) -> Seen:
    seen = Seen(np.array(difficulty))
    curriculum.begin(seen)
    return seen


def show(curriculum: Curriculum, seen: Seen, iteration: int, rates: dict[int, float]) -> None:
    places, values = np.array(sorted(rates)), np.array([rates[i] for i in sorted(rates)])
    seen.iteration = iteration
    known = ~np.isnan(values)
    seen.rate[places[known]], seen.asked[places] = values[known], iteration
    curriculum.learn(seen, places, values)


def chosen(curriculum: Curriculum, seen: Seen, count: int, iteration: int, taken: tuple[int, ...] = ()) -> list[int]:
    free = np.ones(len(seen), dtype=bool)
    free[list(taken)] = False
    seen.iteration = iteration
    draws = np.random.default_rng(iteration).random(len(seen))
    return curriculum.choose(seen, free, count, draws).tolist()


def test_uniform_takes_what_waited_longest() -> None:
    uniform = Uniform()
    seen = begun(uniform, [NAN] * 6)
    show(uniform, seen, 0, {0: 1.0, 1: 0.0})
    show(uniform, seen, 1, {2: 1.0, 3: 0.0})
    assert sorted(chosen(uniform, seen, 4, 2)) == [0, 1, 4, 5]


def test_pools_go_by_the_latest_group_and_before_it_by_the_column() -> None:
    """Range 0 to 9: a third of it is 3. Prompt 0 was easy and turned out hard, prompt 9 the other way round."""
    pools = DifficultyPools(quotas={"easy": 1, "medium": 2, "hard": 1})
    seen = begun(pools, [float(i) for i in range(10)])
    names = {name: np.flatnonzero(of).tolist() for name, of in pools.pool(seen).items()}
    assert names == {"easy": [0, 1, 2], "medium": [3, 4, 5, 6], "hard": [7, 8, 9]}
    show(pools, seen, 0, {0: 0.125, 9: 0.875, 4: 0.5, 5: NAN})
    names = {name: np.flatnonzero(of).tolist() for name, of in pools.pool(seen).items()}
    assert names == {"easy": [1, 2, 9], "medium": [3, 4, 5, 6], "hard": [0, 7, 8]}
    found = chosen(pools, seen, 4, 1)
    assert {found[0]} < {1, 2}  # 9 was asked an iteration ago
    assert set(found[1:3]) == {3, 6}  # 4 and 5 were
    assert {found[3]} < {7, 8}


def test_rounding_moves_no_prompt_between_pools() -> None:
    """Three answers worth .2 have the mean .20000000000000004, three worth .7 the mean .6999999999999998."""
    pools = DifficultyPools(easy=0.7, hard=0.2)
    seen = Seen(np.array([0.3, 0.1 + 0.2, np.nan]))
    pools.begin(seen)
    assert [np.flatnonzero(mask).tolist() for mask in pools.pool(seen).values()] == [[], [0, 1, 2], []]
    seen.rate[:] = sum([0.2] * 3) / 3, (0.7 + 0.7 + 0.7) / 3, 0.5
    assert [np.flatnonzero(mask).tolist() for mask in pools.pool(seen).values()] == [[1], [2], [0]]


def test_a_pool_that_is_empty_is_filled_from_the_next() -> None:
    pools = DifficultyPools(quotas={"easy": 1, "hard": 1})
    seen = begun(pools, [NAN] * 6)  # all medium
    show(pools, seen, 0, {0: 1.0, 1: 1.0})
    found = chosen(pools, seen, 6, 1, taken=())
    assert sorted(found) == [0, 1, 2, 3, 4, 5]
    assert set(chosen(pools, seen, 4, 1)[:2]) == {0, 1}  # 2 easy, and 2 for the hard ones that are not there


def test_the_target_follows_the_rate_as_the_paper_says() -> None:
    """Difficulties 0 to 100, its own numbers: T + 50 tanh(2 (R - 1/2)), from T = 0."""
    target = TargetRate(width=1)
    seen = begun(target, [float(i) for i in range(101)])
    assert sorted(chosen(target, seen, 3, 0)) == [0, 1, 2]
    show(target, seen, 0, {0: 1.0, 1: 1.0, 2: 1.0})
    assert target.values["difficulty"] == pytest.approx(50 * math.tanh(1.0))  # 38.08
    assert sorted(chosen(target, seen, 3, 1)) == [37, 38, 39]
    show(target, seen, 1, {37: 0.25, 38: 0.25, 39: 0.25})
    assert target.values["difficulty"] == pytest.approx(50 * math.tanh(1.0) - 50 * math.tanh(0.5))
    show(target, seen, 2, {0: 0.0})
    assert target.values["difficulty"] == 0.0  # never below the easiest
    show(target, seen, 3, {0: NAN})
    assert target.values["difficulty"] == 0.0  # nothing was learnt


def test_prompts_near_the_target_take_turns() -> None:
    target = TargetRate(width=2)
    seen = begun(target, [1.0] * 4 + [5.0] * 4 + [NAN] * 2)
    first = chosen(target, seen, 2, 0)
    show(target, seen, 0, dict.fromkeys(first, 0.5))
    assert sorted(first + chosen(target, seen, 2, 1)) == [0, 1, 2, 3]
    assert not {8, 9} & set(chosen(target, seen, 8, 2))  # those without a difficulty come last


def test_a_target_needs_difficulties() -> None:
    with pytest.raises(UserError, match=r"TargetRate needs the column 'difficulty', which none of 3 prompts has"):
        begun(TargetRate(), [NAN] * 3)


def test_expected_variance_by_hand() -> None:
    """Beta(1, 1): 1/6. With 4 of 8 right Beta(5, 5): 25/110; all right Beta(9, 1): 9/110; decayed by .5: Beta(5, 1)."""
    informative = Informative(decay=0.5, prior=2.0, evidence=8.0)
    seen = begun(informative, [NAN] * 3)
    assert informative.expected(seen) == pytest.approx([1 / 6] * 3)
    show(informative, seen, 4, {0: 0.5, 1: 1.0})
    assert informative.expected(seen) == pytest.approx([25 / 110, 9 / 110, 1 / 6])
    seen.iteration = 5
    assert informative.expected(seen)[1] == pytest.approx(5 / (6 * 7))
    show(informative, seen, 5, {1: 0.0})  # 4 of what was right is left, and 8 wrong: Beta(5, 9)
    assert informative.expected(seen)[1] == pytest.approx(45 / (14 * 15))
    seen.iteration = 10**6
    assert informative.expected(seen) == pytest.approx([1 / 6] * 3)  # all forgotten


def test_the_prior_comes_from_the_column() -> None:
    """Easiest .9, hardest .1, in the middle .5, of two responses."""
    informative = Informative()
    seen = begun(informative, [1.0, 3.0, 5.0, NAN])
    assert informative.expected(seen) == pytest.approx([1.8 * 0.2 / 6, 1 / 6, 0.2 * 1.8 / 6, 1 / 6])


def test_draws_are_in_proportion() -> None:
    """Of two prompts one at a time, with scores 1/6 and 9/110 at sharpness 1."""
    informative = Informative(decay=1.0, sharpness=1.0)
    seen = begun(informative, [NAN] * 2)
    show(informative, seen, 0, {1: 1.0})
    first = sum(chosen(informative, seen, 1, n) == [0] for n in range(2000)) / 2000
    share = (1 / 6) / (1 / 6 + 9 / 110)  # .67, standard error .0105
    assert abs(first - share) < 0.04


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: DifficultyPools(easy=0.2, hard=0.8), "DifficultyPools.hard"),
        (lambda: DifficultyPools(quotas={"simple": 1}), "DifficultyPools.quotas"),
        (lambda: DifficultyPools(quotas={"easy": 0}), "DifficultyPools.quotas"),
        (lambda: TargetRate(rate=1.5), "TargetRate.rate"),
        (lambda: TargetRate(step=0), "TargetRate.step"),
        (lambda: TargetRate(width=0.5), "TargetRate.width"),
        (lambda: Informative(decay=0), "Informative.decay"),
        (lambda: Informative(prior=0), "Informative.prior"),
        (lambda: Informative(sharpness=-1), "Informative.sharpness"),
    ],
)
def test_settings_out_of_range_are_refused(make: object, field: str) -> None:
    with pytest.raises(UserError, match=rf"^{field}: "):
        make()  # type: ignore[operator]
