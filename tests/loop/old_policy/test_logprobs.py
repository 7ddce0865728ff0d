"""The sampler's log-probabilities serve as the old ones exactly where their measured noise allows it."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
import torch
from lightning.pytorch.utilities import rank_zero_only

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.types import FinishReason, MicroBatch, MiniBatch, Prompt, Rollout
from gspo_lightning.loop.metrics.sums import MetricSums
from gspo_lightning.loop.old_policy.logprobs import OldLogProbs, OldLogProbsChoice
from gspo_lightning.loop.old_policy.old_policy import OldPolicy
from gspo_lightning.loop.old_policy.snapshots import CachedLogProbs, ResidentSnapshot
from gspo_lightning.loop.update.loss import LossTerms, micro_batch_loss, mini_batch_count
from gspo_lightning.objectives import CISPO, GRPO, GSPO, REINFORCE, Objective
from gspo_lightning.policy.packing.rollout_batch import RolloutBatch
from gspo_lightning.policy.policy import Policy
from tests.support.model_families import build_policy

NOISE = 1e-5
"""Of the sampler of these rollouts, per token."""


def rollouts(policy: Policy, known: bool = True) -> list[list[Rollout]]:
    """Groups whose log-probabilities are the policy's own, off by NOISE with alternating signs."""
    generator = torch.Generator().manual_seed(0)
    groups = []
    for p in range(4):
        prompt = Prompt(p, "p", tuple(range(4, 7 + p)))
        group = []
        for k in range(3):
            ids = torch.randint(3, 38, (4 + 2 * k,), generator=generator)
            mask = torch.ones(len(ids), dtype=torch.bool)
            group.append(Rollout(prompt, k, ids, None, mask, FinishReason.STOP, 7, reward=1.0, advantage=k - 1.0))
        groups.append(group)
    for group in groups:
        for rollout in group if known else ():
            (batch,) = RolloutBatch.of([[rollout]], mini_batches=1, max_tokens=99).mini_batches
            with torch.no_grad():
                exact = policy(batch.micro_batches[0])[0][0]
            signs = torch.tensor([1.0, -1.0]).repeat(10)[: len(exact)]
            rollout.logprobs = exact + NOISE * signs
    return groups


def cut(groups: list[list[Rollout]], version: int = 7) -> list[MiniBatch]:
    return RolloutBatch.of(groups, mini_batches=2, max_tokens=60, version=version).mini_batches


def fill(
    chooser: OldLogProbs, old: OldPolicy, policy: Policy, batches: list[MiniBatch], first: bool = True
) -> list[MiniBatch]:
    old.refresh(policy, 0)
    return chooser.fill(old, policy, batches, 1.0, first_is_free=first)


def sources(batches: list[MiniBatch]) -> list[set[bool]]:
    return [{m.old_from_source for m in b.micro_batches} for b in batches]


def gradients(
    batch: MiniBatch, policy: Policy, old: OldPolicy, on_policy: bool
) -> tuple[list[torch.Tensor], MetricSums]:
    policy.zero_grad()
    sums, objective = MetricSums(), GSPO(3e-4, 4e-4)
    count = mini_batch_count(objective, batch.micro_batches)
    for part in batch.micro_batches:
        micro_batch_loss(
            part, LossTerms(policy, old, objective, 1.0), denominator=count, sums=sums, on_policy=on_policy
        ).backward()  # fmt: skip
    return [p.grad.clone() for p in policy.parameters() if p.grad is not None], sums


@pytest.mark.parametrize("form", [CachedLogProbs, ResidentSnapshot])
def test_the_first_mini_batch_needs_no_forward_of_its_own(form: type[OldPolicy]) -> None:
    policy, old = build_policy("qwen3").train(), form()
    batches = cut(rollouts(policy))
    free = fill(OldLogProbs("recompute", GSPO()), old, policy, batches)
    paid = fill(OldLogProbs("recompute", GSPO()), old, policy, batches, first=False)
    assert [m.old_logprobs for m in free[0].micro_batches] == [None] * len(free[0].micro_batches)
    wanted, _ = gradients(paid[0], policy, old, on_policy=False)
    found, sums = gradients(free[0], policy, old, on_policy=True)
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
    assert any(bool(g.abs().max() > 1e-4) for g in found)
    pairs = sums.reduce()[0]
    assert pairs["log_ratio_sequence_squared"][0] == 0.0  # all ratios are exactly 1
    for a, b in zip(free[1].micro_batches, paid[1].micro_batches, strict=True):
        assert torch.equal(old.logprobs(a, 1.0), old.logprobs(b, 1.0))


def test_noise_is_measured_where_the_policy_is_the_old_one() -> None:
    policy = build_policy("qwen3").train()
    for choice in ("source", "recompute"):
        old = CachedLogProbs()
        batches = fill(OldLogProbs(choice, GSPO()), old, policy, cut(rollouts(policy)))
        pairs = gradients(batches[0], policy, old, on_policy=True)[1].reduce()[0]
        tokens, sequences = OldLogProbs("auto", GRPO()), OldLogProbs("auto", GSPO())
        tokens.note(pairs)
        sequences.note(pairs)
        assert tokens.noise == pytest.approx(NOISE, rel=0.05)
        assert sequences.noise is not None
        assert sequences.noise < 0.05 * NOISE  # even lengths: the signs cancel in a sequence's mean
    later = gradients(batches[1], policy, old, on_policy=False)[1].reduce()[0]
    assert later["sampler_logprob_gap_squared"][0] > 0  # recomputed: still a measurement
    from_source = fill(OldLogProbs("source", GSPO()), old, policy, cut(rollouts(policy)))
    later = gradients(from_source[1], policy, old, on_policy=False)[1].reduce()[0]
    assert not [name for name in later if name.startswith(("sampler_", "kl_behaviour_old"))]  # 0 is none


@pytest.mark.parametrize(
    ("objective", "limit"),
    [(GSPO(3e-4, 4e-4), 3e-5), (GRPO(clip_low=0.2, clip_high=0.27), 0.02), (CISPO(clip_low=1.0, clip_high=0.28), 0.028),
     (REINFORCE(), 1e-3)],
)  # fmt: skip
def test_the_limit_is_a_tenth_of_the_clip_range(
    objective: Objective, limit: float, caplog: pytest.LogCaptureFixture
) -> None:
    policy, old = build_policy("qwen3"), CachedLogProbs()
    batches, chooser = cut(rollouts(policy)), OldLogProbs("auto", objective)
    assert chooser.tolerance == pytest.approx(limit)
    assert sources(fill(chooser, old, policy, batches)) == [{False}, {False}]  # nothing has been measured
    with caplog.at_level(logging.INFO, "gspo_lightning"):
        for share, good in ((0.99, True), (1.01, False), (0.5, True), (0.6, True)):
            chooser.noise = share * limit
            assert sources(fill(chooser, old, policy, batches)) == [{False}, {good}]
            assert sources(fill(chooser, old, policy, batches, first=False)) == [{good}, {good}]
    assert ["too noisy" in r.message for r in caplog.records] == [False, True, False]  # said when it changes


@pytest.mark.parametrize("choice", ["auto", "source"])
def test_one_rank_says_what_holds_for_all(
    choice: OldLogProbsChoice, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    policy = build_policy("qwen3")
    batches = cut(rollouts(policy))
    said = []
    with caplog.at_level(logging.INFO, "gspo_lightning"):
        for rank in (0, 1):
            monkeypatch.setattr(rank_zero_only, "rank", rank)
            caplog.clear()
            chooser = OldLogProbs(choice, GSPO(3e-4, 4e-4))
            chooser.noise = 1e-3
            fill(chooser, CachedLogProbs(), policy, batches)
            said.append(len(caplog.records))
    assert said == [1, 0]


def test_a_measurement_of_nothing_changes_nothing() -> None:
    chooser = OldLogProbs("auto", GSPO())
    chooser.note({"sampler_sequence_gap_squared": (4e-10, 4.0)})
    assert chooser.noise == pytest.approx(1e-5)
    chooser.note({"sampler_sequence_gap_squared": (0.0, 0.0)})
    chooser.note({})
    assert chooser.noise == pytest.approx(1e-5)


@pytest.mark.parametrize(("choice", "taken"), [("auto", False), ("recompute", False), ("source", None)])
def test_rollouts_without_log_probabilities(choice: OldLogProbsChoice, taken: bool | None) -> None:
    policy = build_policy("qwen3")
    batches, chooser = cut(rollouts(policy, known=False)), OldLogProbs(choice, GSPO())
    chooser.noise = 0.0
    if taken is None:
        with pytest.raises(UserError, match="these rollouts have no log-probabilities"):
            fill(chooser, CachedLogProbs(), policy, batches)
    else:
        assert sources(fill(chooser, CachedLogProbs(), policy, batches)) == [{False}, {False}]


def test_source_is_taken_at_any_noise_and_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    policy, chooser = build_policy("qwen3"), OldLogProbs("source", GSPO(3e-4, 4e-4))
    chooser.noise = 1e-3
    assert sources(fill(chooser, CachedLogProbs(), policy, cut(rollouts(policy)))) == [{False}, {True}]
    assert "1.0e-03 nats per sequence is above 3.0e-05" in caplog.text


@pytest.mark.parametrize("form", [CachedLogProbs, ResidentSnapshot])
@pytest.mark.parametrize("choice", ["source", "recompute"])
def test_tokens_of_an_earlier_version_keep_their_log_probabilities(
    form: type[OldPolicy], choice: OldLogProbsChoice
) -> None:
    policy, old = build_policy("qwen3").train(), form()
    groups = rollouts(policy)
    pieces = [group[0] for group in groups]
    for rollout in pieces:
        rollout.versions = torch.tensor([3, 3, 7, 7])
    filled = fill(OldLogProbs(choice, GSPO()), old, policy, cut(groups))
    seen = 0
    for number, batch in enumerate(filled):
        for part in batch.micro_batches:
            assert part.behaviour_logprobs is not None
            if part.stale is None:
                continue  # rows of similar length stand together, and none of these was cut
            with torch.no_grad():
                current = policy(part)[0]
            found = old.logprobs(part, 1.0, current if number == 0 else None)
            own = part.behaviour_logprobs if choice == "source" and number else current
            assert torch.equal(found, torch.where(part.stale, part.behaviour_logprobs, own))
            seen += int(part.stale.sum())
    assert seen == 8


def test_rows_of_one_version_are_never_stale() -> None:
    policy = build_policy("qwen3")
    parts: list[MicroBatch] = [m for b in cut(rollouts(policy)) for m in b.micro_batches]
    assert [part.stale for part in parts] == [None] * len(parts)
    moved = replace(parts[0], stale=torch.zeros_like(parts[0].response_mask))
    assert MicroBatch.from_state_dict(moved.state_dict()).stale is moved.stale
