"""Rollouts of several rows: statistics count rollouts, the loss sees rows, and each row reads its own context."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from gspo_lightning.core.distributed import all_sum
from gspo_lightning.core.errors import UserError
from gspo_lightning.core.rows import RowSpan, SampledRow, join_rows
from gspo_lightning.core.types import FinishReason, MicroBatch, Prompt, Rollout
from gspo_lightning.loop.advantages import GAE, BatchNormalised, GroupMean, GroupNormalised
from gspo_lightning.loop.advantages.advantages import Advantages
from gspo_lightning.loop.advantages.assign import assign
from gspo_lightning.loop.advantages.shaping import Shaping
from gspo_lightning.loop.critic import ValueModel
from gspo_lightning.loop.experience.collect import collect, measure_rewards
from gspo_lightning.loop.metrics.rollouts import measure_staleness
from gspo_lightning.loop.metrics.sums import MetricSums
from gspo_lightning.loop.old_policy import CachedLogProbs
from gspo_lightning.loop.old_policy.reference import ReferencePolicy
from gspo_lightning.loop.update.loss import LossTerms
from gspo_lightning.loop.update.micro_batches import all_but_last_backward
from gspo_lightning.objectives import DAPO, GRPO, GSPO, DrGRPO, Objective, Segment
from gspo_lightning.policy.load.loading import load_policy
from gspo_lightning.policy.load.model_settings import ModelSettings
from gspo_lightning.policy.model_checks.checks import choose_layout
from gspo_lightning.policy.packing.batches import RowWeights, cut_micro_batches, make_micro_batch
from gspo_lightning.policy.packing.memory import cut_rows
from gspo_lightning.policy.packing.rollout_batch import RolloutBatch
from gspo_lightning.policy.packing.rows import rows_of, store
from gspo_lightning.policy.policy import Policy
from tests.runs.processes import in_processes

CPU = torch.device("cpu")
Context = tuple[int, ...]


def policy_of(layout: Any = "auto") -> Policy:
    torch.manual_seed(3)
    policy = load_policy(ModelSettings(layout=layout))
    policy.train()
    choose_layout(policy, layout, 40)
    return policy


def rollout(prompt: Prompt, sample: int, rows: list[tuple[Context, list[int], list[int]]], reward: float) -> Rollout:
    """A rollout of rows (context, tokens, mask)."""
    sampled = [SampledRow(context, torch.tensor(ids), torch.tensor(mask).bool()) for context, ids, mask in rows]
    whole = Rollout(
        prompt, sample, **join_rows(sampled), finish_reason=FinishReason.STOP, policy_version=0, reward=reward,
        reward_parts={"r": reward},
    )  # fmt: skip
    whole.logprobs = -torch.arange(1.0, len(whole.token_ids) + 1)
    return whole


def prototype() -> list[list[Rollout]]:
    """A group of three rows: a rollout of two that earned 1, and one that earned nothing."""
    prompt = Prompt(4, "p", (5, 6, 7))
    compacted = rollout(prompt, 0, [((5, 6, 7), [8, 9, 10], [1, 1, 1]), ((20, 21), [11, 12], [1, 0])], 1.0)
    ids = torch.tensor([13, 14])
    plain = Rollout(prompt, 1, ids, -torch.ones(2), torch.ones(2, dtype=torch.bool), FinishReason.STOP, 0, reward=0.0)
    plain.reward_parts = {"r": 0.0}
    return [[compacted, plain]]


def several() -> list[list[Rollout]]:
    """Groups whose rollouts have one to three rows, with contexts of their own and tokens that nobody chose."""
    generator = torch.Generator().manual_seed(1)

    def some(low: int, high: int) -> list[int]:
        size = int(torch.randint(low, high, (1,), generator=generator))
        return torch.randint(3, 38, (size,), generator=generator).tolist()

    groups = []
    for p in range(4):
        prompt = Prompt(10 + p, f"p{p}", tuple(some(2, 6)))
        group = []
        for k in range(3):
            rows = [(prompt.token_ids if i == 0 else tuple(some(2, 9)), some(1, 7)) for i in range(1 + (p + k) % 3)]
            own = [(context, ids, [int(i != 1) for i in range(len(ids))]) for context, ids in rows]
            group.append(rollout(prompt, k, own, float((p + k) % 2)))
        groups.append(group)
    groups[1][2].masked = True
    groups[2][1].reward = None
    return groups


def gradient_of(
    policy: Policy, parts: list[MicroBatch], objective: Objective, *, on_policy: bool = True
) -> tuple[float, torch.Tensor]:
    policy.zero_grad()
    terms = LossTerms(policy, CachedLogProbs(), objective, 1.0)
    sums = MetricSums()
    all_but_last_backward(parts, terms, sums, on_policy=on_policy).backward()
    weights = [p for p in policy.parameters() if p.requires_grad and p.grad is not None]
    return sums.reduce()[0]["loss"][0], torch.cat([p.grad.flatten().clone() for p in weights if p.grad is not None])


def test_the_rows_of_a_rollout_are_views_of_it() -> None:
    (compacted, plain), = prototype()  # fmt: skip
    first, second, third = rows_of([compacted, plain])
    assert [(row.context, row.token_ids.tolist(), row.trained.tolist()) for row in (first, second, third)] == [
        ((5, 6, 7), [8, 9, 10], [True] * 3),
        ((20, 21), [11, 12], [True, False]),
        ((5, 6, 7), [13, 14], [True] * 2),
    ]
    compacted.routes = torch.arange(5 + 3).view(-1, 1, 1)  # of 3 + 3 - 1 and 2 + 2 - 1 tokens
    assert [row.routes.flatten().tolist() for row in (first, second) if row.routes is not None] == [
        [0, 1, 2, 3, 4],
        [5, 6, 7],
    ]
    store("values", [(second, torch.tensor([4.0, 5.0, 0.0])), (first, torch.tensor([1.0, 2.0, 3.0]))])
    assert compacted.values is not None
    assert compacted.values.tolist() == [1, 2, 3, 4, 5]
    with pytest.raises(ValueError, match="3 values for 5 tokens: a row of a rollout is missing"):
        store("values", [(first, torch.zeros(3))])


@pytest.mark.parametrize(
    "rows",
    [
        RowSpan.consecutive([(5,), (5,)], [1, 1]),
        RowSpan.consecutive([(5,), (5,), (5,)], [2, 0, 1]),
        RowSpan.consecutive([(5,), ()], [1, 2]),
        (RowSpan((5,), 0, 1), RowSpan((5,), 0, 3)),
        (RowSpan((5,), 1, 3),),
        (RowSpan((5,), 0, 1), RowSpan((5,), 1, 3, 2)),
    ],
    ids=["too short", "an empty row", "no context", "overlapping", "a gap", "shifted routes"],
)
def test_rows_that_do_not_cover_the_tokens_are_refused(rows: tuple[RowSpan, ...]) -> None:
    ids = torch.tensor([1, 2, 3])
    mask = torch.ones(3, dtype=torch.bool)
    with pytest.raises(ValueError, match="rows must follow one another up to 3, after contexts with tokens, got"):
        Rollout(Prompt(0, "", (1,)), 0, ids, None, mask, FinishReason.STOP, 0, rows=rows)


def test_rows_that_lack_what_others_have_are_joined_without_it() -> None:
    """A row of T tokens after c has c + T - 1 routes, of which the next row's follow: 0 to 2, 3 to 6."""
    first = SampledRow((5, 6), torch.tensor([1, 2]), torch.ones(2).bool(), torch.zeros(2), routes=torch.zeros(3, 1, 1))
    second = SampledRow(
        (7,), torch.tensor([3, 4, 5, 6]), torch.ones(4).bool(), versions=torch.full((4,), 9), routes=torch.ones(4, 1, 1)
    )
    joined = join_rows([first, second])
    assert joined["rows"] == (RowSpan((5, 6), 0, 2, 0), RowSpan((7,), 2, 6, 3))
    assert (joined["logprobs"], joined["versions"]) == (None, None)
    rollout = Rollout(Prompt(0, "", (1,)), 0, **joined, finish_reason=FinishReason.STOP, policy_version=0)
    for row, sampled in zip(rows_of([rollout]), (first, second), strict=True):
        assert torch.equal(row.token_ids, sampled.token_ids)
        assert row.routes is not None
        assert sampled.routes is not None
        assert torch.equal(row.routes, sampled.routes)


@pytest.mark.parametrize(("weigh", "loss"), [("row", -math.sqrt(0.5) / 3), ("rollout", 0.0)])
@pytest.mark.parametrize("layout", ["packed", "padded"])
def test_a_group_of_three_rows_by_hand(weigh: RowWeights, loss: float, layout: str) -> None:
    """Rewards 1 and 0 are A = +-sqrt(1/2), of which the first has two rows; at ratio 1 the loss is -sum w A / sum w.

    Weights 1 each: -(A + A - A) / 3. Shares of the rollout, 3/4 and 1/4 of its trained tokens: -(A - A) / 2.
    The gradient is that of -sum w A mean log pi / sum w, with every row computed alone, after its own context.
    """
    policy, groups = policy_of("padded" if layout == "padded" else "auto"), prototype()
    batch = RolloutBatch.of(groups, mini_batches=1, max_tokens=99, packed=policy.packed, weigh=weigh)
    dead, metrics = assign(groups, GroupNormalised(), Shaping(), CPU)
    assert (dead, metrics) == ([False], {"reward/dead_groups": 0.0})
    batch.take_advantages()
    (mini,) = batch.mini_batches
    (part,) = mini.micro_batches
    advantage = math.sqrt(0.5)
    assert sorted(part.advantages.tolist()) == pytest.approx([-advantage, advantage, advantage], abs=1e-5)
    found, gradient = gradient_of(policy, mini.micro_batches, GSPO())
    assert found == pytest.approx(loss, abs=1e-5)

    policy.zero_grad()
    weights = [1.0, 1.0, 1.0] if weigh == "row" else [0.75, 0.25, 1.0]
    total = torch.zeros(())
    for row, weight, sign in zip(rows_of(groups[0]), weights, (1, 1, -1), strict=True):
        ids = torch.tensor([[*row.context, *row.token_ids.tolist()]])
        logprobs = policy.model(ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None]).squeeze(1)
        own = logprobs[len(row.context) - 1 :][row.trained]
        total = total - weight * sign * advantage * own.mean() / sum(weights)
    total.backward()
    wanted = torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None])
    torch.testing.assert_close(gradient, wanted, atol=2e-5, rtol=1e-4)


def test_shares_of_rows_and_their_place_in_the_micro_batches() -> None:
    """3/4 and 1/4 of four trained tokens; contexts are shared by prompt and tokens, groups by prompt alone."""
    batch = RolloutBatch.of(prototype(), mini_batches=1, max_tokens=99, packed=True)
    (part,) = batch.mini_batches[0].micro_batches
    assert part.row_weights is not None
    assert part.prompt_index is not None
    by_row = {tuple(ids.tolist()): i for i, ids in enumerate(part.response_ids)}
    order = [by_row[8, 9, 10], by_row[11, 12, 0], by_row[13, 14, 0]]
    assert part.row_weights[order].tolist() == [0.75, 0.25, 1.0]
    assert part.prompt_lengths[order].tolist() == [3, 2, 3]
    index = part.prompt_index[order].tolist()
    assert index[0] == index[2] != index[1]
    assert part.group_index == (0, 0, 0)
    gone = prototype()[0][0]
    gone.reward = None
    assert make_micro_batch([gone]).row_weights is not None
    assert make_micro_batch([gone]).row_weights.tolist() == [0.0, 0.0]  # type: ignore[union-attr]
    assert make_micro_batch(prototype()[0], weigh="row").row_weights is None
    assert make_micro_batch(prototype()[0][1:]).row_weights is None  # every rollout has a single row


def test_denominators_of_weighted_rows_by_hand() -> None:
    """Two rows that share a rollout, a rollout of one row, and an empty row: 2 rollouts, 3 rows, 6 tokens."""
    mask = torch.tensor([[1, 1, 0], [1, 0, 0], [1, 1, 1], [0, 0, 0]]).bool()
    weights = torch.tensor([2 / 3, 1 / 3, 1.0, 0.0])
    for objective, shared, each in ((GSPO(), 2.0, 3.0), (DrGRPO(9), 18.0, 27.0), (DAPO(), 6.0, 6.0)):
        assert float(objective.counted(mask, weights)) == pytest.approx(shared)
        assert float(objective.counted(mask, None)) == each
    zeros = torch.zeros(4, 3)
    with pytest.raises(UserError, match=r"row_weights: has shape \(3,\), but must be \[N\] = \(4,\): one per row"):
        GSPO()(zeros, zeros, torch.ones(4), mask, row_weights=weights[:3])
    with pytest.raises(UserError, match=r"row_weights: has dtype torch\.bool"):
        GSPO()(zeros, zeros, torch.ones(4), mask, row_weights=weights > 0)
    loss = GSPO()(zeros, zeros, torch.tensor([3.0, -6.0, 1.0, 5.0]), mask, row_weights=weights).loss
    assert float(loss) == pytest.approx(-(2 / 3 * 3 - 1 / 3 * 6 + 1) / 2)


@pytest.mark.parametrize("weigh", ["row", "rollout"])
def test_a_ratio_per_turn_by_hand(weigh: RowWeights) -> None:
    """Rows of turns of 1 and 2 tokens, of 1, and of 2, with log-ratios of .1, (.2, .4); .3; (.5, -.1).

    Ratios of turns: e^.1, e^.3; e^.3; e^.2. Advantages 1 and 1 of a rollout, -1 of the other. A row's term is the mean
    over its tokens; rows weigh 3/4, 1/4 and 1 (or 1 each), and the loss divides by their sum.
    """
    prompt = Prompt(4, "p", (5, 6, 7))
    split = rollout(prompt, 0, [((5, 6, 7), [8, 9, 10, 11], [1, 0, 1, 1]), ((20, 21), [12, 13], [1, 0])], 1.0)
    plain = rollout(prompt, 1, [((5, 6, 7), [14, 15], [1, 1])], 0.0)
    split.advantage, plain.advantage = 1.0, -1.0
    part = make_micro_batch([split, plain], weigh=weigh)
    changes = {8: 0.1, 10: 0.2, 11: 0.4, 12: 0.3, 14: 0.5, 15: -0.1}
    old = torch.full(part.response_mask.shape, -2.0)
    new = old + torch.tensor([[changes.get(token, 7.0) for token in row] for row in part.response_ids.tolist()])
    out = Segment(clip_low=0.9, clip_high=9.0, by="turn")(
        new, old, part.advantages, part.response_mask, row_weights=part.row_weights
    )
    terms = [(math.exp(0.1) + 2 * math.exp(0.3)) / 3, math.exp(0.3), -math.exp(0.2)]
    weights = [1.0, 1.0, 1.0] if weigh == "row" else [0.75, 0.25, 1.0]
    wanted = -sum(w * x for w, x in zip(weights, terms, strict=True)) / sum(weights)
    assert float(out.loss) == pytest.approx(wanted, rel=1e-6)


@pytest.mark.thorough("objective3-row")
@pytest.mark.parametrize("weigh", ["row", "rollout"])
@pytest.mark.parametrize("objective", [GSPO(kl_coef=0.1, positive_nll_coef=0.1), GRPO(), DAPO(), DrGRPO(9)])
def test_gradients_do_not_depend_on_how_rows_are_cut(objective: Objective, weigh: RowWeights) -> None:
    """Packed and padded, whole, in small micro-batches, and cut again because memory ran out."""
    found = []
    for layout, budget in (("auto", 999), ("auto", 30), ("padded", 999), ("padded", 40)):
        policy, groups = policy_of(layout), several()
        assign(groups, GroupNormalised(), Shaping(), CPU)
        batch = RolloutBatch.of(groups, mini_batches=1, max_tokens=budget, packed=policy.packed, weigh=weigh)
        for part in (parts := batch.mini_batches[0].micro_batches):
            part.ref_logprobs = torch.full(part.response_mask.shape, -3.0)
        assert (len(parts) > 3) == (budget < 99)
        found.append(gradient_of(policy, parts, objective))
        if budget == 999:
            pieces = [piece for part in parts for piece in cut_rows(part, 35, policy.packed)]
            assert len(pieces) > 3
            found.append(gradient_of(policy, pieces, objective))
    for loss, gradient in found[1:]:
        assert loss == pytest.approx(found[0][0], abs=1e-5)
        torch.testing.assert_close(gradient, found[0][1], atol=2e-5, rtol=1e-3)


def on_rank(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    try:
        policy, groups = policy_of(), several()[rank::2]
        assign(groups, GroupNormalised(), Shaping(), CPU)
        batch = RolloutBatch.of(groups, mini_batches=2, max_tokens=30, packed=policy.packed, deal="stratified")
        batch.take_advantages()
        kept = []
        for mini in batch.mini_batches:
            loss, gradient = gradient_of(policy, mini.micro_batches, GSPO())
            kept.append((loss, all_sum(gradient) / 2))  # DDP averages
        torch.save(kept, Path(folder, str(rank)))
    finally:
        dist.destroy_process_group()


@pytest.mark.thorough
def test_two_ranks_make_the_update_of_one(tmp_path: Path) -> None:
    """Mini-batches have the same rollouts, however many rows those have; ranks hold unequal numbers of rows."""
    policy, groups = policy_of(), several()
    assign(groups, GroupNormalised(), Shaping(), CPU)
    batch = RolloutBatch.of(groups, mini_batches=2, max_tokens=30, packed=policy.packed, deal="stratified")
    batch.take_advantages()
    assert len({mini.num_rows for mini in batch.mini_batches}) == 2  # mini-batches, too
    wanted = [gradient_of(policy, mini.micro_batches, GSPO()) for mini in batch.mini_batches]
    in_processes(on_rank, str(tmp_path))
    for rank in range(2):
        for (loss, gradient), mine in zip(torch.load(tmp_path / str(rank)), wanted, strict=True):
            assert loss == pytest.approx(mine[0], abs=1e-5)
            torch.testing.assert_close(gradient, mine[1], atol=2e-5, rtol=1e-3)


def halves(whole: list[list[Rollout]]) -> list[list[Rollout]]:
    """The same rollouts, each cut into rows that read all that came before."""
    cut = []
    for group in whole:
        cut.append([])
        for r in group:
            ids, prompt, ends = r.token_ids.tolist(), r.prompt.token_ids, sorted({1, len(r.token_ids) // 2 + 1})
            ends = [end for end in ends if end < len(ids)] + [len(ids)]
            starts = [0, *ends[:-1]]
            rows = [((*prompt, *ids[:a]), ids[a:b], r.response_mask[a:b].int().tolist()) for a, b in zip(starts, ends)]  # noqa: B905
            made = rollout(r.prompt, r.sample, rows, r.reward or 0.0)
            made.reward, made.masked, made.turn_ends, made.turn_rewards = (
                r.reward,
                r.masked,
                r.turn_ends,
                r.turn_rewards,
            )
            made.steps = r.steps
            cut[-1].append(made)
    return cut


def single(count: int = 4) -> list[list[Rollout]]:
    """Groups of rollouts of one row, with turns and scored steps."""
    generator = torch.Generator().manual_seed(2)
    groups = []
    for p in range(count):
        prompt = Prompt(p, "p", tuple(range(3, 5 + p)))
        group = []
        for k in range(3):
            size = 3 + (2 * p + 3 * k) % 6
            ids, mask = torch.randint(3, 38, (size,), generator=generator), torch.ones(size, dtype=torch.bool)
            mask[1] = size < 4
            made = Rollout(prompt, k, ids, -torch.arange(1.0, size + 1), mask, FinishReason.STOP, 0)
            made.reward, made.reward_parts = float((p * k) % 3), {"r": float((p * k) % 3)}
            group.append(made)
        groups.append(group)
    groups[0][1].masked = True
    return groups


@pytest.mark.parametrize("objective", [GRPO(), DAPO(), DrGRPO(9), GRPO(kl_coef=0.2, entropy_coef=0.1)])
def test_a_response_cut_into_rows_trains_as_the_whole(objective: Objective) -> None:
    """Rows that read all that came before are the response itself, for a loss per token and the default weights."""
    policy, found = policy_of(), []
    for groups in (single(), halves(single())):
        assign(groups, GroupNormalised(), Shaping(), CPU)
        batch = RolloutBatch.of(groups, mini_batches=1, max_tokens=60, packed=policy.packed)
        for part in batch.mini_batches[0].micro_batches:
            part.ref_logprobs = torch.full(part.response_mask.shape, -3.0)
        found.append(
            (batch.mini_batches[0].num_rows, *gradient_of(policy, batch.mini_batches[0].micro_batches, objective))
        )
    assert found[0][0] == 12 < found[1][0]
    assert found[0][1] == pytest.approx(found[1][1], abs=1e-5)
    torch.testing.assert_close(found[0][2], found[1][2], atol=2e-5, rtol=1e-3)


@pytest.mark.parametrize("advantages", [GroupNormalised(), GroupMean(), BatchNormalised()])
@pytest.mark.parametrize("credit", ["whole", "turns", "steps"])
def test_statistics_count_rollouts_and_not_rows(advantages: Advantages, credit: str) -> None:
    found = []
    for groups in (single(), halves(single())):
        for r in (r for group in groups for r in group):
            size = len(r.token_ids)
            if credit == "turns":
                r.turn_ends, r.turn_rewards = (2, size), (0.5, float(r.sample))
            elif credit == "steps":
                r.steps = {"r": ((2, 0.25), (size, float(r.sample)))}
        shaping = Shaping(turn_reward="r" if credit == "turns" else None)
        dead, metrics = assign(groups, advantages, shaping, CPU)
        tokens = [r.token_advantages.tolist() for g in groups for r in g if r.token_advantages is not None]
        assert len(tokens) == (0 if credit == "whole" else 12)
        measured = measure_rewards([r for g in groups for r in g], 0, CPU)
        found.append(([r.advantage for g in groups for r in g], tokens, dead, metrics, measured))
    assert found[0] == found[1]
    assert any(found[0][0]) or any(map(any, found[0][1]))


def test_advantages_of_turns_and_steps_reach_the_rows_that_hold_them() -> None:
    """Tokens 0 and 1 are in the first row, 2 to 4 in the second; turns end after 3 and 5, steps after 1, 3 and 5."""
    (r, _), = prototype()  # fmt: skip
    r.rows = RowSpan.consecutive([(5, 6, 7), (20, 21)], [2, 3])
    r.token_advantages = torch.tensor([1.0, 1.0, 1.0, 2.0, 2.0])
    r.steps = {"r": ((1, 0.0), (3, 0.5), (5, 1.0))}
    part = make_micro_batch([r])
    assert part.advantages.tolist() == [[1, 1, 0], [1, 2, 2]]
    assert part.segments is not None
    assert part.segments.tolist() == [[0, 1, 0], [0, 1, 1]]  # in each row from 0


def test_gae_follows_an_episode_over_its_rows_by_hand() -> None:
    """V = (.5, .25, .75, -, .5), gamma 1, lambda .5, reward 1 at the last token chosen, that of the second row.

    delta_4 = 1 - .5 = .5; delta_2 = .5 - .75 = -.25; delta_1 = .75 - .25 = .5; delta_0 = .25 - .5 = -.25.
    A_4 = .5; A_2 = -.25 + .25 = 0; A_1 = .5; A_0 = -.25 + .25 = 0. Returns with lambda 1: the reward.
    """
    prompt = Prompt(0, "", (5,))
    r = rollout(prompt, 0, [((5,), [6, 7], [1, 1]), ((8, 9), [10, 11, 12], [1, 0, 1])], 1.0)
    with pytest.raises(ValueError, match=r"response 0/0 .* has no values of a critic"):
        assign([[r]], GAE(lam=0.5, whiten=False), Shaping(), CPU)
    r.values = torch.tensor([0.5, 0.25, 0.75, 9.0, 0.5])
    assert assign([[r]], GAE(lam=0.5, whiten=False), Shaping(), CPU)[0] is None
    assert r.token_advantages is not None
    assert r.returns is not None
    assert r.token_advantages.tolist() == [0.0, 0.5, 0.0, 0.0, 0.5]
    assert r.returns.tolist() == [1.0, 1.0, 1.0, 0.0, 1.0]


def test_a_critic_reads_every_row_and_learns_from_all_of_them() -> None:
    policy = policy_of()
    critic = ValueModel(lr=1e-3, gradient_clip=None)
    critic.build(policy, longest=40)
    critic.head.weight.data = torch.randn(critic.head.weight.shape, generator=torch.Generator().manual_seed(5))
    groups = several()
    batch = RolloutBatch.of(groups, mini_batches=1, max_tokens=30, packed=policy.packed)
    critic.judge(batch)
    for r in batch.rollouts:
        alone = [critic.values(make_micro_batch([row]))[0] for row in rows_of([r])]
        assert r.values is not None
        torch.testing.assert_close(r.values, torch.cat(alone).detach(), atol=1e-5, rtol=1e-4)
    with pytest.raises(ValueError, match="has no returns"):
        critic.learn(batch)
    norms = []
    for own in (single(), halves(single())):
        batch = RolloutBatch.of(own, mini_batches=1, max_tokens=60, packed=policy.packed)
        again = ValueModel(lr=1e-3, gradient_clip=None)
        again.build(policy, longest=40)
        again.head.weight.data = critic.head.weight.data.clone()
        again.judge(batch)
        assign(own, GAE(lam=0.5), Shaping(), CPU)
        norms.append(again.learn(batch)["critic/gradient_norm"])
    assert norms[0] == pytest.approx(norms[1], rel=1e-4)
    assert norms[0] > 0


def test_the_penalty_of_a_rollout_is_that_of_its_rows() -> None:
    policy, found = policy_of(), []
    reference = ReferencePolicy(policy)
    with torch.no_grad():
        reference.policy.model.get_output_embeddings().weight.mul_(2.0)
    for groups in (single(), halves(single())):
        rollouts = [r for g in groups for r in g]
        reference.penalise(rollouts, policy, 0.3, 0.7, 60, CPU)
        found.append(
            [[r.kl_penalty, *([] if r.token_penalties is None else r.token_penalties.tolist())] for r in rollouts]
        )
    for whole, cut in zip(*found, strict=True):
        assert cut == pytest.approx(whole, abs=1e-5)
        assert cut[0] == pytest.approx(float(sum(cut[1:])), abs=1e-5)
    assert max(abs(row[0]) for row in found[0]) > 0.1


def test_token_metrics_count_the_tokens_of_all_rows() -> None:
    groups = prototype()
    groups[0][0].versions = torch.tensor([3, 3, 5, 5, 1])
    groups[0][1].policy_version = 5
    assert measure_staleness(groups[0], 5, CPU) == {
        "staleness/stale_tokens": 3 / 7, "staleness/mean_age": 8 / 7, "staleness/max_age": 4.0,
    }  # fmt: skip
    batch = RolloutBatch.of(groups, mini_batches=1, max_tokens=99, version=4)
    marked = torch.cat(
        [
            part.stale[0, : int(part.response_lengths)]
            for part in cut_micro_batches(groups[0][:1], 6, version=4)
            if part.stale is not None
        ]
    )
    assert marked.tolist() == [True, True, False, False, True]
    kept = collect(batch, measure_rewards(batch.rollouts, 0, CPU, seconds=2.0), device=CPU)
    assert kept.metrics["throughput/generated_tokens_per_s"] == 3.0
    assert kept.metrics["response/length"] == 3.0  # (4 + 2) / 2
    assert kept.distributions["length"] == [4.0, 2.0]
    assert kept.rewards.keys() == {"4/0/0", "4/0/1", "4/1"}
    assert len({key for key, _ in kept.rewards.values()}) == 3
    assert [reward for _, reward in kept.rewards.values()] == [1.0, 1.0, 0.0]
