"""The order of several sources: exact quotas, the same on any number of ranks, and choices that are remembered."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.types import Prompt
from gspo_lightning.data.prompts import mixed_order, order
from gspo_lightning.data.prompts.curricula import Curriculum, DifficultyPools, Informative, Seen, TargetRate
from gspo_lightning.data.prompts.mixed_order import MixedOrder, Part

PROMPTS = [Prompt(i, f"p{i}", (1,), {"source": "a" if i < 20 else "b"}) for i in range(50)]
PARTS = [Part("a", 3, range(20)), Part("b", 1, range(20, 50))]
DIFFICULTY = np.array([i % 20 for i in range(50)], dtype=float)


def made(curriculum: Curriculum | None = None, **changed: Any) -> MixedOrder:
    options: dict[str, Any] = {
        "per_iteration": 8,
        "mini_batches": 2,
        "seed": 1,
        "parts": PARTS,
        "difficulty": DIFFICULTY,
    }
    return MixedOrder(PROMPTS, curriculum=curriculum, **(options | changed))


def test_a_source_that_a_curriculum_cannot_use_is_named() -> None:
    unknown = np.where(np.arange(50) < 20, DIFFICULTY, np.nan)
    with pytest.raises(UserError, match=r"^data.curriculum: source 'b': TargetRate needs .* none of 30 prompts has"):
        made(TargetRate(), difficulty=unknown)


def ids(prompts: list[Prompt]) -> list[int]:
    return [p.id for p in prompts]


def sources(prompts: list[Prompt]) -> Counter[str]:
    return Counter(str(p.columns["source"]) for p in prompts)


def test_every_iteration_and_every_mini_batch_has_its_share_of_every_source() -> None:
    for i in range(20):
        share = made().prompts_for_rank(i)
        assert sources(share) == {"a": 6, "b": 2}
        assert sources(share[:4]) == sources(share[4:]) == {"a": 3, "b": 1}
        assert len(set(ids(share))) == 8


def test_a_source_comes_round_before_any_of_its_prompts_does_again() -> None:
    """20 prompts of a make three iterations of 6 a pass; 30 of b fifteen of 2."""
    asked = made()
    first = [i for n in range(3) for i in ids(asked.prompts_for_rank(n)) if i < 20]
    assert len(set(first)) == 18
    assert sorted(i for n in range(15) for i in ids(asked.prompts_for_rank(n)) if i >= 20) == list(range(20, 50))
    assert ids(asked.prompts_for_rank(16)) == ids(made().prompts_for_rank(16))  # a function of the number alone


@pytest.mark.parametrize("curriculum", [None, Informative(), TargetRate(), DifficultyPools()])
def test_ranks_share_what_one_process_has(curriculum: Curriculum | None, monkeypatch: pytest.MonkeyPatch) -> None:
    def run() -> tuple[list[int], list[int]]:
        asked = made(curriculum)
        for n in range(3):
            asked.observe(n, {p.id: (p.id % 5) / 4 for p in PROMPTS[n * 7 : n * 7 + 7]})
        return ids(asked.prompts_for_rank(3)), ids(asked.replacement_prompts(3, 6))

    alone, spare = run()
    assert not set(alone) & set(spare)
    mine = []
    for rank in (0, 1):
        for module in (order, mixed_order):
            monkeypatch.setattr(module, "rank_and_world", lambda r=rank: (r, 2))
        mine.append(run())
    for cut in range(2):
        dealt = {i for share, _ in mine for i in share[cut * 2 : cut * 2 + 2]}
        assert dealt == set(alone[cut * 4 : cut * 4 + 4])
    assert not set(mine[0][1]) & set(mine[1][1])
    assert not set(mine[0][1] + mine[1][1]) & set(alone)


def test_spares_are_of_every_source() -> None:
    spare = made().replacement_prompts(0, 5)
    assert sources(spare) == {"a": 5, "b": 5}
    assert sources(made().replacement_prompts(0, 99)) == {"a": 14, "b": 28}


@pytest.mark.parametrize("curriculum", [Informative(), TargetRate(), DifficultyPools()])
def test_mixed_order_saves_observed_rates_and_resumes_with_them(curriculum: Curriculum) -> None:
    def go(asked: MixedOrder, begin: int, end: int) -> list[list[int]]:
        found = []
        for n in range(begin, end):
            share = ids(asked.prompts_for_rank(n))
            found.append(share)
            asked.observe(n, {i: ((i * 7 + n) % 5) / 4 for i in [*share, *ids(asked.replacement_prompts(n, 2))]})
        return found

    whole = go(made(curriculum), 0, 8)
    first, second = made(curriculum), made(curriculum)
    go(first, 0, 5)
    second.load_state_dict(first.state_dict())
    assert go(second, 5, 8) == whole[5:]
    assert go(made(curriculum), 5, 8) != whole[5:]


def test_a_choice_is_made_once_for_an_iteration() -> None:
    """Rollouts made ahead have their prompts before what came before them is observed."""
    asked = made(Informative())
    ahead = ids(asked.prompts_for_rank(1))
    asked.observe(0, dict.fromkeys(range(50), 1.0))
    assert ids(asked.prompts_for_rank(1)) == ahead


def test_a_source_that_is_too_small_is_refused() -> None:
    parts = [Part("a", 3, range(5)), Part("b", 1, range(5, 50))]
    with pytest.raises(UserError, match=r"source 'a' holds 5 usable prompts, and an iteration takes 6"):
        made(parts=parts)


def test_weights_whose_sum_is_beyond_the_range_of_floats() -> None:
    weights = np.array([1.0, 2.0, 1.0, 2.0, 1.0] * 10)
    order, huge = (made(weights=weights * scale) for scale in (1.0, 2.0**1022))
    assert [ids(huge.prompts_for_rank(i)) for i in range(4)] == [ids(order.prompts_for_rank(i)) for i in range(4)]


class _Repeats(Curriculum):
    def choose(self, seen: Seen, free: NDArray[np.bool_], count: int, draws: NDArray[np.float64]) -> NDArray[np.int64]:
        return np.zeros(count, dtype=np.int64)


def test_a_curriculum_that_chooses_a_prompt_twice_is_refused() -> None:
    with pytest.raises(UserError, match=r"_Repeats.choose: returned 6 places"):
        made(_Repeats()).prompts_for_rank(0)
