"""Rewards to advantages."""

from __future__ import annotations

import math
import pickle
import statistics
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonargparse import ArgumentParser
from torch import Tensor

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.registry import components
from gspo_lightning.loop.advantages.advantages import Advantages, dead_groups, try_advantages
from gspo_lightning.loop.advantages.within_groups import (
    BatchNormalised,
    GroupMean,
    GroupNormalised,
    LeaveOneOut,
    MaxRL,
    Raw,
)

NAN = float("nan")
ALL: list[Advantages] = [GroupNormalised(), GroupMean(), LeaveOneOut(), BatchNormalised(), MaxRL(), Raw()]
GROUP_RELATIVE = [a for a in ALL if a.min_group_size == 2]


def of(
    advantages: Advantages, rewards: list[float], groups: list[int], dtype: torch.dtype = torch.float64
) -> list[float]:
    found = advantages(torch.tensor(rewards, dtype=dtype), torch.tensor(groups, dtype=torch.int64))
    assert found.dtype == dtype
    values: list[float] = found.tolist()
    return values


def test_advantages_of_every_estimator_by_hand() -> None:
    rewards, groups = [1.0, 0.0, 0.0, 3.0, 5.0], [0, 0, 0, 1, 1]
    std = math.sqrt((4 / 9 + 1 / 9 + 1 / 9) / 2)
    low = 1 / (math.sqrt(2) + 1e-6)
    assert of(GroupNormalised(), rewards, groups) == pytest.approx(
        [(2 / 3) / (std + 1e-6), *[(-1 / 3) / (std + 1e-6)] * 2, -low, low], abs=1e-12
    )
    assert of(GroupMean(), rewards, groups) == pytest.approx([2 / 3, -1 / 3, -1 / 3, -1, 1], abs=1e-12)
    assert of(LeaveOneOut(), rewards, groups) == pytest.approx([1, -0.5, -0.5, -2, 2], abs=1e-12)
    assert of(MaxRL(), rewards, groups) == pytest.approx([2, -1, -1, -0.25, 0.25], abs=1e-12)
    assert of(Raw(), rewards, groups) == rewards
    mean, std = statistics.mean(rewards), statistics.stdev(rewards)
    assert of(BatchNormalised(), rewards, groups) == pytest.approx([(r - mean) / (std + 1e-6) for r in rewards])


def test_leave_one_out_is_the_mean_of_the_others() -> None:
    rewards = [0.3, 1.7, -2.0, 0.0]
    expected = [r - statistics.mean(rewards[:i] + rewards[i + 1 :]) for i, r in enumerate(rewards)]
    assert of(LeaveOneOut(), rewards, [4] * 4) == pytest.approx(expected, abs=1e-12)


def test_eps_is_added_to_the_standard_deviation() -> None:
    assert of(GroupNormalised(eps=1.0), [0.0, 2.0], [0, 0]) == pytest.approx([-1 / (2**0.5 + 1), 1 / (2**0.5 + 1)])
    assert of(BatchNormalised(eps=1.0), [0.0, 2.0], [0, 1]) == pytest.approx([-1 / (2**0.5 + 1), 1 / (2**0.5 + 1)])


@pytest.mark.parametrize("advantages", ALL, ids=repr)
def test_missing_rewards_get_zero_and_take_no_part(advantages: Advantages) -> None:
    with_missing = of(advantages, [1.0, NAN, 0.0, 0.0, NAN, 2.0, 1.0], [0, 0, 0, 0, 1, 1, 1])
    without = of(advantages, [1.0, 0.0, 0.0, 2.0, 1.0], [0, 0, 0, 1, 1])
    assert [with_missing[i] for i in (0, 2, 3, 5, 6)] == without
    assert with_missing[1] == with_missing[4] == 0.0
    assert of(advantages, [NAN, NAN], [0, 0]) == [0.0, 0.0]
    assert of(advantages, [], []) == []


@pytest.mark.parametrize("advantages", GROUP_RELATIVE, ids=repr)
@pytest.mark.parametrize("value", [0.1, 1 / 3, 1e8 + 0.1, 0.0])
def test_dead_groups_get_exactly_zero(advantages: Advantages, value: float) -> None:
    """0.1 three times has a mean that is not 0.1 in floating point: a spread would not find it."""
    assert of(advantages, [value] * 3 + [1.0, 0.0], [0] * 3 + [1, 1])[:3] == [0.0] * 3
    assert of(advantages, [value] * 7, [0] * 7, torch.float32) == [0.0] * 7
    assert of(advantages, [value, NAN], [0, 0]) == [0.0, 0.0]


def test_a_dead_batch_gets_exactly_zero() -> None:
    assert of(BatchNormalised(), [0.1] * 3, [0, 1, 2]) == [0.0] * 3
    assert of(BatchNormalised(), [0.1], [0]) == [0.0]


@pytest.mark.parametrize(
    ("low", "high", "dtype", "dead"),
    [
        (0.3, 0.1 + 0.2, torch.float64, True),
        (-0.3, -0.1 - 0.2, torch.float64, True),
        (1000.0, 1000.0 * (1 + 0.9e-9), torch.float64, True),
        (1000.0, 1000.0 * (1 + 1.1e-9), torch.float64, False),
        (0.0, 1e-300, torch.float64, False),  # relative to the largest reward of the group, however small
        (1.0, 1.0 + 0.9e-6, torch.float32, True),
        (1.0, 1.0 + 1.2e-6, torch.float32, False),
    ],
)
def test_a_spread_of_rounding_is_none(low: float, high: float, dtype: torch.dtype, dead: bool) -> None:
    groups = [0, 0, 0, 1, 1]
    rewards = [low, high, low, 0.0, 1.0]
    assert dead_groups(torch.tensor(rewards, dtype=dtype), torch.tensor(groups)).tolist() == [dead, False]
    for advantages in GROUP_RELATIVE:
        if low >= 0 or not isinstance(advantages, MaxRL):
            found = of(advantages, rewards, groups, dtype)
            assert (found[:3] == [0.0] * 3) is dead, advantages
            assert found[3] < 0 < found[4]
    assert (of(BatchNormalised(), rewards[:3], [0, 1, 2], dtype) == [0.0] * 3) is dead


def test_equal_rewards_of_float32_are_dead_whatever_their_standard_deviation() -> None:
    """In PyTorch ``std()`` of equal float32 values is often above 0."""
    equal = torch.full((7,), 0.3)
    for advantages in (*GROUP_RELATIVE, BatchNormalised()):
        assert advantages(equal, torch.zeros(7, dtype=torch.int64)).tolist() == [0.0] * 7


@pytest.mark.parametrize("advantages", [*GROUP_RELATIVE, BatchNormalised()])
def test_a_reward_at_the_mean_has_no_sign(advantages: Advantages) -> None:
    low, middle, high = of(advantages, [0.1, 0.2, 0.3], [0, 0, 0])
    assert low < 0 == middle < high


def test_maxrl_takes_a_negative_rounding_error_for_zero() -> None:
    left = 0.3 - 0.1 - 0.2
    assert left < 0
    assert of(MaxRL(), [left, 1.0], [0, 0]) == [-1.0, 1.0]


def test_dead_groups_per_group_in_order_of_the_ids() -> None:
    rewards = torch.tensor([1.0, 0.0, 0.0, 0.0, NAN, NAN, 2.0, NAN, 3.0])
    groups = torch.tensor([9, 9, -2, -2, 4, 4, 5, 5, 7])
    assert dead_groups(rewards, groups).tolist() == [True, True, True, True, False]
    assert dead_groups(torch.zeros(0), torch.zeros(0, dtype=torch.int64)).tolist() == []


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_groups_do_not_see_each_other_and_order_does_not_matter(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    groups = torch.tensor([g for g, n in enumerate(sizes) for _ in range(n)])
    values = st.one_of(st.just(NAN), st.sampled_from([0.0, 1.0, 0.1]), st.floats(0, 10, allow_subnormal=False))
    rewards = torch.tensor(data.draw(st.lists(values, min_size=len(groups), max_size=len(groups))), dtype=torch.float64)
    order = torch.tensor(data.draw(st.permutations(range(len(groups)))))
    for advantages in ALL:
        found = advantages(rewards, groups)
        assert torch.isfinite(found).all()
        assert torch.allclose(advantages(rewards[order], groups[order] * 7 - 3), found[order], atol=1e-9, rtol=1e-9)
        if advantages.min_group_size == 2:
            for g in range(len(sizes)):
                alone = advantages(rewards[groups == g], groups[groups == g])
                assert torch.allclose(alone, found[groups == g], atol=1e-9, rtol=1e-9)
                assert abs(float(alone.sum())) < 1e-6 * max(1.0, float(alone.abs().max()))
                if dead_groups(rewards, groups)[g]:
                    assert (alone == 0).all()


def test_computes_in_float64_whatever_the_rewards() -> None:
    rewards = torch.tensor([1e6, 1e6 + 1, 1e6 + 2], dtype=torch.float32)
    found = GroupNormalised()(rewards, torch.zeros(3, dtype=torch.int64))
    assert found.dtype == torch.float32
    assert found.tolist() == pytest.approx([-1.0, 0.0, 1.0], abs=1e-5)


@pytest.mark.parametrize(
    ("rewards", "groups", "says"),
    [
        (torch.tensor([1, 0]), torch.tensor([0, 0]), "rewards: .*int64"),
        (torch.zeros(2, 1), torch.tensor([0, 0]), r"rewards: has shape \(2, 1\)"),
        (torch.zeros(2), torch.tensor([0]), r"group_ids: has shape \(1,\)"),
        (torch.zeros(2), torch.tensor([0.0, 0.0]), "group_ids: .*float32"),
        (torch.tensor([math.inf, 0.0]), torch.tensor([0, 0]), "rewards: has 1 infinite"),
    ],
)
def test_bad_input_is_named(rewards: torch.Tensor, groups: torch.Tensor, says: str) -> None:
    for function in (*ALL, dead_groups):
        with pytest.raises(UserError, match=says):
            function(rewards, groups)


def test_max_rl_refuses_negative_rewards() -> None:
    with pytest.raises(UserError, match="-1"):
        of(MaxRL(), [1.0, -1.0], [0, 0])


@pytest.mark.parametrize("eps", [-1.0, NAN, math.inf, "1e-6"])
@pytest.mark.parametrize("cls", [GroupNormalised, BatchNormalised])
def test_eps_is_checked(cls: type, eps: float) -> None:
    with pytest.raises(UserError, match="eps"):
        cls(eps=eps)


def test_eps_may_be_zero_and_is_1e_6_by_default() -> None:
    assert of(GroupNormalised(eps=0), [0.0, 2.0], [0, 0]) == pytest.approx([-(0.5**0.5), 0.5**0.5], abs=1e-15)
    assert [repr(GroupNormalised()), repr(BatchNormalised())] == [
        "GroupNormalised(eps=1e-06)",
        "BatchNormalised(eps=1e-06)",
    ]


def test_compute_is_never_called_without_a_sample() -> None:
    class AboveTheWorst(Advantages):
        """Distance to the smallest reward."""

        def compute(self, rewards: torch.Tensor, groups: object) -> torch.Tensor:
            return rewards - rewards.min()  # raises on nothing

    assert of(AboveTheWorst(), [1.0, NAN, 3.0], [0, 0, 0]) == [0.0, 0.0, 2.0]
    assert of(AboveTheWorst(), [NAN, NAN], [0, 0]) == [0.0, 0.0]
    assert of(AboveTheWorst(), [], []) == []


def test_min_group_size_says_what_needs_a_group() -> None:
    assert {type(a).__name__: a.min_group_size for a in ALL} == {
        "GroupNormalised": 2,
        "GroupMean": 2,
        "LeaveOneOut": 2,
        "MaxRL": 2,
        "BatchNormalised": 1,
        "Raw": 1,
    }


@pytest.mark.parametrize("advantages", ALL, ids=repr)
def test_registered_picklable_and_built_from_the_command_line(advantages: Advantages) -> None:
    name = type(advantages).__name__
    assert components("advantages")[name] is type(advantages)
    assert repr(pickle.loads(pickle.dumps(advantages))) == repr(advantages)
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--advantages", type=Advantages)
    assert repr(parser.instantiate(parser.parse_args(["--advantages", name])).advantages) == repr(advantages)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda r: r.mean(), r"returned a tensor of shape \(\), .* \[M\] = \(4,\)"),
        (lambda r: r[:2], r"returned a tensor of shape \(2,\)"),
        (lambda r: r.unsqueeze(-1), r"returned a tensor of shape \(4, 1\)"),
        (lambda r: r.tolist(), "returned a list"),
        (lambda r: (r - r.mean()) / (r - r).sum(), "returned 4 of 4 advantages that are not finite"),
    ],
)
def test_malformed_advantages_of_a_plugin_are_refused_by_name(made: Callable[[Tensor], Any], said: str) -> None:
    class Wrong(Advantages):
        def compute(self, rewards: Tensor, groups: Any) -> Any:
            return made(rewards)

    with pytest.raises(UserError, match=f"Wrong.compute: {said}"):
        of(Wrong(), [1.0, NAN, 0.0, 0.0, 2.0], [0, 0, 0, 1, 1])
    with pytest.raises(UserError, match=r"Wrong.compute"):
        try_advantages(Wrong(), 2)


def test_a_plug_in_that_divides_by_a_spread_of_zero_is_found_before_a_run() -> None:
    class Spread(Advantages):
        def compute(self, rewards: Tensor, groups: Any) -> Tensor:
            centred = rewards - groups.mean(rewards)[groups.index]
            return centred / groups.mean(centred.square()).sqrt()[groups.index]

    of(Spread(), [1.0, 0.0], [0, 0])
    with pytest.raises(UserError, match=r"Spread.compute: returned 4 of 8 advantages that are not finite"):
        try_advantages(Spread(), 4)


@pytest.mark.parametrize("advantages", ALL, ids=repr)
def test_the_family_passes_the_trial(advantages: Advantages) -> None:
    for size in (2, 3, 8):
        try_advantages(advantages, size)
