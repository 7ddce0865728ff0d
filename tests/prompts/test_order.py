"""The training order: every prompt once a pass, the same for any number of ranks, spares that nobody has."""

from __future__ import annotations

import pytest

from gspo_lightning.prompts import order
from gspo_lightning.prompts.order import PromptOrder, rank_share
from gspo_lightning.types import Prompt

PROMPTS = [Prompt(i, f"p{i}", (1,)) for i in range(11)]


def made() -> PromptOrder:
    return PromptOrder(PROMPTS, per_iteration=4, mini_batches=2, seed=1)


def ids(prompts: list[Prompt]) -> list[int]:
    return [p.id for p in prompts]


def test_a_pass_has_no_prompt_twice_and_passes_differ() -> None:
    shares = [ids(made().share(i)) for i in range(4)]
    first, second = shares[0] + shares[1], shares[2] + shares[3]
    assert len(set(first)) == len(set(second)) == 8  # 11 prompts fill two rollout batches of 4
    assert first != second
    assert ids(made().share(2)) == shares[2]  # nothing is remembered


@pytest.mark.parametrize("world", [1, 2])
def test_ranks_share_each_mini_batch(world: int, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = ids(made().share(1))
    shares = []
    for rank in range(world):
        monkeypatch.setattr(order, "rank_and_world", lambda r=rank: (r, world))
        shares.append(ids(made().share(1)))
        assert ids([made().at(place) for place in range(len(shares[-1]), 2 * len(shares[-1]))]) == shares[-1]
    halves = [{i for share in shares for i in share[m * len(share) // 2 : (m + 1) * len(share) // 2]} for m in (0, 1)]
    assert halves == [set(alone[:2]), set(alone[2:])]


def test_spares_are_in_nobodys_share_and_in_one_ranks_hands(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = set(ids(made().share(0)))
    alone = ids(made().spare(0, 99))
    assert set(alone) == set(range(11)) - taken
    assert ids(made().spare(0, 2)) == alone[:2]
    monkeypatch.setattr(order, "rank_and_world", lambda: (1, 2))
    assert ids(made().spare(0, 99)) == alone[1::2]


def test_rank_share_of_one_rank_is_the_order_itself() -> None:
    assert rank_share([5, 3, 8, 1], 2) == [5, 3, 8, 1]
