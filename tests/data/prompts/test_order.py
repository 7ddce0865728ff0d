"""The training order: every prompt once a pass, the same for any number of ranks, spares that nobody has."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from typing import Any

import pytest

from gspo_lightning.core.types import Prompt
from gspo_lightning.data.prompts import order
from gspo_lightning.data.prompts.order import ORDER, PromptOrder

SHARES = [[3, 10, 1, 4], [7, 5, 8, 9], [3, 6, 4, 2]]
PROMPTS = [Prompt(i, f"p{i}", (1,)) for i in range(11)]


def made() -> PromptOrder:
    return PromptOrder(PROMPTS, per_iteration=4, mini_batches=2, seed=1)


def ids(prompts: list[Prompt]) -> list[int]:
    return [p.id for p in prompts]


def test_a_pass_has_no_prompt_twice_and_passes_differ() -> None:
    shares = [ids(made().prompts_for_rank(i)) for i in range(4)]
    first, second = shares[0] + shares[1], shares[2] + shares[3]
    assert len(set(first)) == len(set(second)) == 8  # 11 prompts fill two rollout batches of 4
    assert first != second
    assert ids(made().prompts_for_rank(2)) == shares[2]  # nothing is remembered


@pytest.mark.parametrize("world", [1, 2])
def test_ranks_share_each_mini_batch(world: int, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = ids(made().prompts_for_rank(1))
    shares = []
    for rank in range(world):
        monkeypatch.setattr(order, "rank_and_world", lambda r=rank: (r, world))
        shares.append(ids(made().prompts_for_rank(1)))
        assert ids([made().at(place) for place in range(len(shares[-1]), 2 * len(shares[-1]))]) == shares[-1]
    halves = [{i for share in shares for i in share[m * len(share) // 2 : (m + 1) * len(share) // 2]} for m in (0, 1)]
    assert halves == [set(alone[:2]), set(alone[2:])]


def test_spares_are_in_nobodys_share_and_in_one_ranks_hands(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = set(ids(made().prompts_for_rank(0)))
    alone = ids(made().replacement_prompts(0, 99))
    assert set(alone) == set(range(11)) - taken
    assert ids(made().replacement_prompts(0, 2)) == alone[:2]
    monkeypatch.setattr(order, "rank_and_world", lambda: (1, 2))
    assert ids(made().replacement_prompts(0, 99)) == alone[1::2]


def test_the_order_is_the_same_in_every_version() -> None:
    """Known answers: runs go on with them."""
    assert made().state_dict() == {"order": ORDER} == {"order": 2}
    assert [ids(made().prompts_for_rank(i)) for i in range(3)] == SHARES
    assert [ids([made().at(4 * i + k) for k in range(4)]) for i in range(3)] == SHARES


class Million(Sequence[Prompt]):
    """Prompts that are made when they are asked for, and counted."""

    def __init__(self) -> None:
        self.asked = 0

    def __len__(self) -> int:
        return 2**20

    def __getitem__(self, place: Any) -> Any:
        self.asked += 1
        return Prompt(place, "", (1,))


def test_an_iteration_of_a_million_prompts_asks_for_its_own_only() -> None:
    prompts = Million()
    order = PromptOrder(prompts, per_iteration=8, mini_batches=2, seed=0)
    tracemalloc.start()
    try:
        share = ids(order.prompts_for_rank(2**16 + 7))
        assert share == ids([order.at((2**16 + 7) * 8 + k) for k in range(8)])
        spare = ids(order.replacement_prompts(5, 4))
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()
    assert prompts.asked == 20
    assert len({*share}) == 8
    assert not {*spare} & {*ids(order.prompts_for_rank(5))}
