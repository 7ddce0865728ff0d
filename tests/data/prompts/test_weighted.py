"""Prompts by weight: exact shares, no prompt twice in an iteration, the same from any place and on any rank."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.randomness import stream, uniforms
from gspo_lightning.core.types import Prompt
from gspo_lightning.data.prompts import mixed_order, order
from gspo_lightning.data.prompts.mixed_order import MixedOrder, Part
from gspo_lightning.data.prompts.weighted import WeightedTurns


def drawn(weights: list[float], count: int, iterations: int, seed: int = 0) -> list[list[int]]:
    turns = WeightedTurns(np.array(weights), stream(seed), lambda _: count)
    return [list(turns.of(i)) for i in range(iterations)]


@pytest.mark.parametrize("seed", range(5))
def test_one_at_a_time_every_period_has_each_prompt_as_often_as_its_weight(seed: int) -> None:
    """Weights 1, 2 and 3 of 2 on average: after 24 draws, and after 48, exactly 1, 2 and 3 times as many."""
    weights = [1.0, 2.0, 3.0] * 4
    found = [i for (i,) in drawn(weights, 1, 48, seed)]
    assert Counter(found[:24]) == {i: weights[i] for i in range(12)}
    assert Counter(found) == {i: 2 * weights[i] for i in range(12)}
    assert found[:24] != found[24:]


def test_equal_weights_shuffle_every_pass_anew() -> None:
    found = [i for share in drawn([5.0] * 12, 4, 12) for i in share]
    passes = [found[at : at + 12] for at in range(0, 48, 12)]
    assert all(sorted(one) == list(range(12)) for one in passes)
    assert len({tuple(one) for one in passes}) == 4


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("heaviest", [3.0, 12.0])
def test_draws_come_in_the_order_of_their_times_and_never_twice_in_an_iteration(seed: int, heaviest: float) -> None:
    """Beside all times sorted at once; the heaviest of 12 may be due in every iteration of 8 at most 12 / 8 times."""
    count, iterations = 8, 40
    weights = uniforms(stream(9, seed), torch.arange(60)).numpy() + 0.05
    weights[7] = heaviest * weights.sum() / 100
    assert weights[7] * count <= weights.sum()
    rates = weights * len(weights) / weights.sum()
    times = sorted(
        ((k + float(uniforms(stream(seed), torch.tensor(i), torch.tensor(k)))) / rate, i)
        for i, rate in enumerate(rates) for k in range(int(20 * rate) + 2)
    )  # fmt: skip
    queue = [i for _, i in times]
    found = drawn(list(weights), count, iterations, seed)
    for share in found:
        wanted: list[int] = []
        for i in queue:
            if i not in wanted and len(wanted) < count:
                wanted.append(i)
        for i in wanted:
            queue.remove(i)
        assert share == wanted
    total = Counter(i for share in found for i in share)
    for i, weight in enumerate(weights):
        assert abs(total[i] - iterations * count * weight / weights.sum()) < 2


def test_an_iteration_is_found_from_any_place() -> None:
    weights = [1.0, 2.0, 3.0] * 4
    whole = drawn(weights, 5, 30)
    turns = WeightedTurns(np.array(weights), stream(0), lambda _: 5)
    for i in (29, 3, 4, 3, 17):
        assert list(turns.of(i)) == whole[i]


PROMPTS = [Prompt(i, f"p{i}", (1,)) for i in range(30)]
WEIGHTS = np.array([1.0, 3.0] * 10 + [1.0] * 10)
PARTS = [Part("a", 3, range(20)), Part("b", 1, range(20, 30))]


def made(weights: np.ndarray | None = WEIGHTS, count: int = 8, parts: list[Part] = PARTS) -> MixedOrder:
    return MixedOrder(PROMPTS, count, 2, 1, parts, weights=weights)


def test_weights_count_within_a_source_and_leave_its_quota() -> None:
    """Six of eight are of a: 240 draws in 40 iterations, 6 and 18 for each of its prompts; b goes in turn."""
    ids = [p.id for i in range(40) for p in made().prompts_for_rank(i)]
    found = Counter(ids)
    assert sum(found[i] for i in range(20)) == 240
    assert all(abs(found[i] - (18 if i % 2 else 6)) <= 1 for i in range(20))
    alone = [p.id for i in range(40) for p in made(None).prompts_for_rank(i)]
    assert [i for i in ids if i >= 20] == [i for i in alone if i >= 20]


def test_ranks_share_what_one_process_has_and_spares_follow_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    one, spare = [p.id for p in made().prompts_for_rank(5)], [p.id for p in made().replacement_prompts(5, 4)]
    shares, spares = list[int](), list[int]()
    for rank in range(2):
        for module in (order, mixed_order):
            monkeypatch.setattr(module, "rank_and_world", lambda rank=rank: (rank, 2))
        asked = made()
        shares += [p.id for p in asked.prompts_for_rank(5)]
        spares += [p.id for p in asked.replacement_prompts(5, 2)]
    assert sorted(shares) == sorted(one)
    assert {*spares} == {*spare}
    assert not {*spare} & {*one}
    monkeypatch.undo()
    asked = made(count=4)
    first = Counter(asked.replacement_prompts(i, 1)[0].id % 2 for i in range(200))  # of source a: the first of each
    assert first[1] > 2 * first[0]  # 3 to 1


def test_a_prompt_that_an_iteration_would_need_twice_is_refused() -> None:
    weights = np.ones(30)
    weights[4] = 12.0  # of 31 within source a, of which an iteration takes 3 * 8 / 4 = 6
    with pytest.raises(UserError, match=r"^data.train: 4: 'weight' is 12 of 31 in all, and an iteration takes 6 prom"):
        made(weights)
    weights[4] = 19 / 5  # w * 6 = w + 19: in every iteration
    ids = [[p.id for p in made(weights).prompts_for_rank(i)] for i in range(20)]
    assert sum(4 in share for share in ids) >= 19
