"""Collectives whose shape follows from what a rank happens to hold, with two real processes."""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from collections.abc import Callable
from contextlib import closing
from typing import Any
from unittest import mock

import pytest
import torch

from gspo_lightning.core.distributed import all_gather_objects, fail_together
from gspo_lightning.core.errors import InfrastructureError, UserError
from gspo_lightning.core.randomness import stream
from gspo_lightning.core.types import FinishReason, Prompt, Rollout
from gspo_lightning.loop.advantages.assign import assign
from gspo_lightning.loop.advantages.shaping import (
    CombineRewards,
    Shaping,
    TruncatedResponses,
    mask_truncated,
)
from gspo_lightning.loop.advantages.within_groups import GroupNormalised
from gspo_lightning.loop.experience.collect import collect, measure_rewards
from gspo_lightning.loop.experience.prefetcher import Job, RolloutPrefetcher
from gspo_lightning.loop.experience.retrying import RetryingSource
from gspo_lightning.loop.metrics.rollouts import measure_rollouts
from gspo_lightning.policy.packing.deal import deal_rows
from gspo_lightning.policy.packing.rollout_batch import RolloutBatch
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.tiny import build_tiny_model, character_tokenizer
from gspo_lightning.rollouts import VLLMServer
from gspo_lightning.rollouts.serving.pool import Pool, Server, Weights
from tests.rollouts.toy_server import ToyServer
from tests.runs.ranks import WORLD, two_ranks

CPU = torch.device("cpu")


def rollout(prompt: int, reward: float, kl: float, *, truncated: bool = False) -> Rollout:
    ids, reason = torch.tensor([5, 6]), FinishReason.LENGTH if truncated else FinishReason.STOP
    made = Rollout(Prompt(prompt, "p", (3,)), 0, ids, torch.zeros(2), torch.ones(2, dtype=torch.bool), reason, 0)
    made.reward, made.reward_parts, made.kl_penalty = reward, {"a": reward, "b": 0.0}, kl
    return made


def group(rank: int) -> list[Rollout]:
    """Of the second rank all responses were cut: masked ones have an empty mask, and so no KL."""
    cut = rank == 1
    rewards, kl = (1.0, 0.0, 1.0, 0.0), (0.3, 0.1, 0.2, 0.0)
    return [rollout(rank, r, 0.0 if cut else nats, truncated=cut) for r, nats in zip(rewards, kl, strict=True)]


def lost(prompt: int) -> Rollout:
    """A conversation whose environment failed has no rewards at all."""
    made = rollout(prompt, 0.0, 0.0)
    made.reward, made.reward_parts, made.lost = None, {}, "gone"
    return made


def advantages_of(rank: int, shaping: Shaping, *, second_is_lost: bool = False) -> tuple[list[float], float]:
    mine = [lost(1) for _ in range(4)] if second_is_lost and rank == 1 else group(rank)
    mask_truncated(mine, shaping)
    dead = assign([mine], GroupNormalised(), shaping, CPU)[1]["reward/dead_groups"]
    return [r.advantage for r in mine], dead


@pytest.mark.parametrize("truncated", ["mask", "penalise", "keep"])
@pytest.mark.parametrize("combine", ["normalised_separately", "weighted_sum"])
def test_ranks_of_which_one_has_only_truncated_responses(
    truncated: TruncatedResponses, combine: CombineRewards
) -> None:
    """As if one process held both groups."""
    shaping = Shaping(truncated=truncated, combine=combine)
    groups = [group(0), group(1)]
    mask_truncated([r for g in groups for r in g], shaping)
    dead = assign(groups, GroupNormalised(), shaping, CPU)[1]["reward/dead_groups"]
    wanted = [([r.advantage for r in g], dead) for g in groups]
    assert two_ranks(advantages_of, shaping) == wanted
    assert any(a != 0 for a in wanted[0][0])


@pytest.mark.parametrize("rewards", [(), ("a", "b")])
def test_ranks_of_which_one_has_lost_all_its_conversations(rewards: tuple[str, ...]) -> None:
    shaping = Shaping(combine="normalised_separately", rewards=rewards)
    groups = [group(0), [lost(1) for _ in range(4)]]
    dead = assign(groups, GroupNormalised(), shaping, CPU)[1]["reward/dead_groups"]
    wanted = [([r.advantage for r in g], dead) for g in groups]
    found = two_ranks(_with_a_loss, shaping)
    assert [x[:2] for x in found] == wanted
    assert wanted[1] == ([0.0] * 4, 0.5)
    metrics = found[0][2]
    assert metrics == found[1][2]
    assert metrics["reward/missing"] == 0.5
    assert metrics["reward/parts/a"] == 0.5
    assert metrics["reward/parts/b"] == 0.0


def _with_a_loss(rank: int, shaping: Shaping) -> tuple[list[float], float, dict[str, float]]:
    mine = [lost(1) for _ in range(4)] if rank == 1 else group(0)
    found, dead = advantages_of(rank, shaping, second_is_lost=True)
    return found, dead, measure_rollouts(mine, CPU)


def _collected(rank: int, silent: int) -> str:
    """What a rank says to a batch in which ``silent`` ranks have no reward at all."""
    mine = group(rank)
    for i, r in enumerate(mine):
        if rank < silent:
            r.reward, r.missing = None, "a: the judge is asleep" if i else f"a: rank {rank} has no judge"
    try:
        found = measure_rewards(mine, iteration=3, device=CPU)
        batch = RolloutBatch.of([mine], mini_batches=1, max_tokens=99, iteration=3)
        kept = collect(batch, found, device=CPU)
    except UserError as error:
        return str(error)
    return str(kept.metrics["reward/missing"])


def test_an_iteration_without_any_reward_stops_every_rank_with_all_reasons() -> None:
    first, second = two_ranks(_collected, 2)
    assert first == second
    assert "no response of iteration 3 has a reward" in first
    assert "6 x a: the judge is asleep, 1 x a: rank 0 has no judge, 1 x a: rank 1 has no judge" in first


def test_a_rank_without_any_reward_goes_on_with_the_other() -> None:
    assert two_ranks(_collected, 1) == ["0.5", "0.5"]


def _grid() -> list[list[Rollout]]:
    every = [[rollout(prompt, 1.0, 0.0) for _ in range(2)] for prompt in range(4)]
    for group in every:
        group[1].sample = 1
    return every


ONE_SIDED = next(
    base
    for base in map(stream, range(10_000))
    if {r.prompt.id % 2 for r in deal_rows(_grid(), mini_batches=2, deal="shuffled", base=base)[0]} == {0}
)
"""A stream whose permutation puts all rows of the first rank into the first mini-batch."""


def _dealt(rank: int) -> list[tuple[int, float, list[tuple[int, int]]]]:
    """Of each mini-batch: its rows, the sum of its micro-batches' weights, and whose its rows are."""
    mine = _grid()[rank::WORLD]
    made = RolloutBatch.of(mine, mini_batches=2, max_tokens=30, packed=True, deal="shuffled", base=ONE_SIDED)
    made.take_advantages()
    return [
        (
            b.num_rows,
            sum(p.weight for p in b.micro_batches),
            [(r.rollout.prompt.id, r.rollout.sample) for _, o in parts for r in o],
        )
        for b, parts in zip(made.mini_batches, made.parts(), strict=True)
    ]


def test_a_rank_that_has_no_row_of_a_mini_batch_keeps_step_with_a_filler() -> None:
    first, second = two_ranks(_dealt)
    assert first == [(4, 1.0, [(0, 0), (0, 1), (2, 0), (2, 1)]), (0, 0.0, [])]
    assert second == [(0, 0.0, []), (4, 1.0, [(1, 0), (1, 1), (3, 0), (3, 1)])]


def _steps(rank: int, which: str) -> list[Rollout]:
    """A group of two responses of three tokens; their steps are scored by rank and case."""
    first, second = rollout(rank, 0.5, 0.0), rollout(rank, 0.25, 0.0)
    scores = {"one rank has none": [[1.0, 0.0], [0.5, 0.25]] if rank == 0 else [[], []],
              "more on one rank": [[1.0, 0.0], [0.5]] if rank == 0 else [[0.75], []],
              "masked": [[1.0, 0.0], [0.5]] if rank == 0 else [[0.75, 0.5], [1.0]],
              "all masked": [[1.0, 0.0], [0.5]]}[which]  # fmt: skip
    for made, own in zip((first, second), scores, strict=True):
        made.steps = {"a": tuple((i + 1, s) for i, s in enumerate(own))} if own else {}
        made.reward_parts = {"a": sum(own) / len(own) if own else 0.0, "b": 0.5}
        made.masked = which == "all masked" or (which == "masked" and rank == 1)
    return [first, second]


def _stepped(groups: list[list[Rollout]]) -> tuple[list[list[list[float]]], float]:
    dead = assign(groups, GroupNormalised(), Shaping(), CPU)[1]["reward/dead_groups"]
    return [[r.token_advantages.tolist() for r in g if r.token_advantages is not None] for g in groups], dead


def _steps_here(rank: int, which: str) -> tuple[list[list[list[float]]], float]:
    return _stepped([_steps(rank, which)])


@pytest.mark.parametrize("which", ["one rank has none", "more on one rank", "masked", "all masked"])
def test_steps_of_two_ranks_are_compared_as_by_one(which: str) -> None:
    wanted, dead = _stepped([_steps(0, which), _steps(1, which)])
    assert two_ranks(_steps_here, which) == [([own], dead) for own in wanted]
    if which != "all masked":
        assert any(x != 0 for row in wanted[0] for x in row)


def _beside_each_other(rank: int) -> list[Any]:
    """On rank 0 the collective of the job is the first to be issued, on rank 1 that of the main thread."""
    begun = threading.Event()

    def make(iteration: int) -> Job[list[Any]]:
        def job(_: Callable[[], None]) -> list[Any]:
            if iteration == 0:
                return []
            if rank == 1:
                begun.wait(10)
                time.sleep(0.3)
            begun.set()
            with fail_together():
                return all_gather_objects(("job", rank))

        return job

    line = RolloutPrefetcher[list[Any]](1)
    line.take(0, 2, make)
    if rank == 0:
        begun.wait(10)
        time.sleep(0.3)
    begun.set()
    found = all_gather_objects(("training", rank)), line.take(1, 2, make)
    line.close()
    return list(found)


def test_collectives_of_rollouts_ahead_do_not_meet_those_of_training() -> None:
    expected = [[("training", 0), ("training", 1)], [("job", 0), ("job", 1)]]
    assert two_ranks(_beside_each_other) == [expected, expected]


def _closed_at_different_times(rank: int) -> list[Any]:
    """Rank 0 stops while rank 1 is about to begin the job after the next."""
    found: list[Any] = []

    def make(iteration: int) -> Job[None]:
        def job(check: Callable[[], None]) -> None:
            if iteration == 0:
                return
            found.append(all_gather_objects((iteration, rank)))
            if rank == 0 or iteration == 2:
                while True:
                    check()

        return job

    line = RolloutPrefetcher[None](2)
    line.take(0, None, make)
    if rank == 1:
        time.sleep(1)
    line.close()
    return found


@pytest.mark.thorough
def test_a_rank_that_stops_first_leaves_none_waiting_in_a_collective() -> None:
    expected = [[(1, 0), (1, 1)], [(2, 0), (2, 1)]]
    assert two_ranks(_closed_at_different_times) == [expected, expected]


def _failing_on_one(rank: int) -> list[Any]:
    """The job of rank 1 fails after its collective; the others of this rank keep step all the same."""
    found: list[Any] = []

    def make(iteration: int) -> Job[None]:
        def job(check: Callable[[], None]) -> None:
            found.append(all_gather_objects((iteration, rank)))
            if rank == 1 and iteration == 1:
                raise InfrastructureError("the server is gone")

        return job

    line = RolloutPrefetcher[None](1)
    line.take(0, None, make)
    try:
        line.take(1, None, make)
        found.append("trained")
    except InfrastructureError as error:
        found.append(str(error))
    line.close()
    return found


def test_a_job_that_fails_on_one_rank_leaves_none_waiting_in_a_collective() -> None:
    both = [[(iteration, 0), (iteration, 1)] for iteration in range(3)]
    first, second = two_ranks(_failing_on_one)
    assert sorted(map(str, first)) == sorted(map(str, [*both, "trained"]))
    assert sorted(map(str, second)) == sorted(map(str, [*both, "the server is gone"]))


def _failing_before_weights_are_sent(rank: int) -> list[Any]:
    """Weights are sent when a job is made, by all ranks; the job of rank 1 fails."""
    made: list[Any] = []

    def make(iteration: int) -> Job[None]:
        made.append(all_gather_objects((iteration, rank)))

        def job(check: Callable[[], None]) -> None:
            if rank == 1 and iteration == 1:
                raise InfrastructureError("the server is gone")

        return job

    line = RolloutPrefetcher[None](1)
    line.take(0, None, make, together=True)
    try:
        line.take(1, None, make, together=True)
    except InfrastructureError as error:
        made.append(str(error))
    line.close()
    return made


def test_a_job_that_fails_on_one_rank_ends_all_by_its_name_before_weights_are_sent() -> None:
    expected = [[(0, 0), (0, 1)], [(1, 0), (1, 1)], "rank 1, rollouts of iteration 1: the server is gone"]
    assert two_ranks(_failing_before_weights_are_sent) == [expected, expected]


def _handed_over(rank: int, url: str) -> tuple[int, bool]:
    """The server does not answer rank 1 the first time; attempts of this rank, and whether the end was in step."""
    attempts: list[int] = []
    original = Pool.sync

    async def sync(self: Pool, weights: Weights) -> list[Server]:
        attempts.append(1)
        if rank == 1 and len(attempts) == 1:
            raise InfrastructureError("no server took the weights")
        return await original(self, weights)

    with mock.patch.object(Pool, "sync", sync), closing(VLLMServer([url])) as source:
        RetryingSource(source, retries=1, wait_s=0.0).sync_weights(
            Policy(build_tiny_model("tiny-qwen3", seed=3), character_tokenizer()), 4
        )
    return len(attempts), all_gather_objects(rank) == [0, 1]


@pytest.mark.thorough
def test_weights_that_one_rank_does_not_find_on_a_server_are_sent_again_by_all() -> None:
    with ToyServer() as toy:
        assert two_ranks(_handed_over, toy.url) == [(2, True), (2, True)]
        assert toy.loads == 2


def _still_sampling(rank: int, url: str) -> bool:
    """Rank 0 is done with version 1 and asks for version 2, while rank 1 still asks the server for responses."""
    policy = Policy(build_tiny_model("tiny-qwen3", seed=3), character_tokenizer())
    with closing(VLLMServer([url])) as source:
        source.sync_weights(policy, 1)
        if rank == 1:
            before = _tag(url)
            time.sleep(1)
            kept = _tag(url) == before
        source.sync_weights(policy, 2)
        return rank == 0 or (kept and _tag(url) != before)


def _tag(url: str) -> str:
    with urllib.request.urlopen(f"{url}/weight_info") as reply:
        return str(json.loads(reply.read())["weight_version"])


def test_servers_keep_their_weights_until_the_last_rank_has_sampled_from_them() -> None:
    with ToyServer() as toy:
        assert two_ranks(_still_sampling, toy.url) == [True, True]
