"""The old policy does not move while the policy learns, in every form to the same bits."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.types import FinishReason, MiniBatch, Prompt, Rollout
from gspo_lightning.loop.old_policy.old_policy import OldPolicy
from gspo_lightning.loop.old_policy.snapshots import CachedLogProbs, OffloadedSnapshot, ResidentSnapshot
from gspo_lightning.policy.packing.rollout_batch import RolloutBatch
from gspo_lightning.policy.policy import Policy
from tests.support.model_families import build_policy

TEMPERATURE = 0.8


def batches() -> list[MiniBatch]:
    """Two mini-batches of several micro-batches each."""
    generator = torch.Generator().manual_seed(0)

    def rollout(prompt: int, sample: int) -> Rollout:
        count = int(torch.randint(2, 9, (), generator=generator))
        ids = torch.randint(3, 38, (count,), generator=generator)
        mask = torch.ones(count, dtype=torch.bool)
        source = Prompt(prompt, "p", tuple(range(4, 7 + prompt)))
        return Rollout(source, sample, ids, torch.zeros(count), mask, FinishReason.STOP, 0, reward=1.0)

    groups = [[rollout(p, k) for k in range(3)] for p in range(4)]
    return RolloutBatch.of(groups, mini_batches=2, max_tokens=40).mini_batches


def step(policy: Policy) -> None:
    """One optimizer step that moves every weight."""
    optimizer = torch.optim.AdamW(policy.parameters(), lr=0.01)
    policy(batches()[0].micro_batches[0], TEMPERATURE)[0].sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def old_logprobs(old: OldPolicy, prepared: list[MiniBatch]) -> list[Tensor]:
    return [old.logprobs(m, TEMPERATURE) for b in prepared for m in b.micro_batches]


def same(first: list[Tensor], second: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("family", ["qwen3", "qwen3-moe"])
def test_all_forms_give_the_same_bits_before_and_after_the_policy_moves(family: str) -> None:
    policy = build_policy(family).train()
    prepared, found = {}, {}
    forms: dict[str, OldPolicy] = {
        "cached": CachedLogProbs(), "resident": ResidentSnapshot(), "offloaded": OffloadedSnapshot(),
    }  # fmt: skip
    for name, old in forms.items():
        old.refresh(policy, 0)
        prepared[name] = old.prepare(policy, batches(), TEMPERATURE)
        found[name] = old_logprobs(old, prepared[name])
    with torch.no_grad():
        live = [policy(m, TEMPERATURE)[0] for b in batches() for m in b.micro_batches]
    assert same(found["cached"], live)
    assert same(found["resident"], live)
    step(policy)
    with torch.no_grad():
        moved = [policy(m, TEMPERATURE)[0] for b in batches() for m in b.micro_batches]
    assert not any(torch.equal(a, b) for a, b in zip(moved, live, strict=True))
    for name, old in forms.items():
        assert same(old_logprobs(old, prepared[name]), live)
    # a refresh of the next iteration follows the policy
    for old in forms.values():
        old.refresh(policy, 1)
        assert same(old_logprobs(old, old.prepare(policy, batches(), TEMPERATURE)), moved)


def test_cached_values_carry_no_gradient_and_leave_the_batch_alone() -> None:
    policy, source = build_policy("qwen3").train(), batches()
    prepared = CachedLogProbs().prepare(policy, source, TEMPERATURE)
    assert all(
        m.old_logprobs is not None and not m.old_logprobs.requires_grad for b in prepared for m in b.micro_batches
    )
    assert all(m.old_logprobs is None for b in source for m in b.micro_batches)
    assert [(b.index, b.iteration, b.num_rows) for b in prepared] == [
        (b.index, b.iteration, b.num_rows) for b in source
    ]
    assert policy.training
    assert all(p.grad is None for p in policy.parameters())


def test_the_temperature_is_part_of_every_old_logprob() -> None:
    policy = build_policy("qwen3")
    cold, warm = (CachedLogProbs().prepare(policy, batches(), t)[0].micro_batches[0] for t in (0.8, 1.0))
    assert cold.old_logprobs is not None
    assert warm.old_logprobs is not None
    assert not torch.allclose(cold.old_logprobs, warm.old_logprobs)


def test_training_without_prepared_values_is_an_error() -> None:
    with pytest.raises(ValueError, match="prepare\\(\\) was not called"):
        CachedLogProbs().logprobs(batches()[0].micro_batches[0], TEMPERATURE)


def test_sampling_uses_the_snapshot_that_the_ratio_divides_by() -> None:
    policy = build_policy("qwen3")
    assert CachedLogProbs().sampling_policy(policy) is policy
    resident = ResidentSnapshot(refresh_every=2)
    resident.refresh(policy, 0)
    assert resident.sampling_policy(policy) is resident.snapshot
    assert resident.snapshot is not policy


@pytest.mark.parametrize("every", [1, 2, 3])
def test_refresh_every_counts_iterations(every: int) -> None:
    policy, old = build_policy("qwen3", sharpen=1.0), ResidentSnapshot(refresh_every=every)
    weight = policy.model.get_output_embeddings().weight
    seen = []
    for iteration in range(7):
        with torch.no_grad():
            weight.fill_(float(iteration))  # the policy has moved since the last iteration
        old.refresh(policy, iteration)
        seen.append(int(old.snapshot.model.get_output_embeddings().weight[0, 0]))
    assert seen == [iteration - iteration % every for iteration in range(7)]


def test_the_first_refresh_takes_a_snapshot_whatever_the_iteration() -> None:
    policy, old = build_policy("qwen3"), ResidentSnapshot(refresh_every=4)
    old.refresh(policy, 3)
    assert same(list(old.snapshot.parameters()), list(policy.parameters()))


def test_the_snapshot_never_learns() -> None:
    policy, old = build_policy("qwen3").train(), ResidentSnapshot()
    for iteration in range(2):
        old.refresh(policy, iteration)
        assert not any(p.requires_grad for p in old.snapshot.parameters())
        found = old.logprobs(batches()[0].micro_batches[0], TEMPERATURE)
        assert not found.requires_grad
        shared = {p.data_ptr() for p in policy.parameters()} & {p.data_ptr() for p in old.snapshot.parameters()}
        assert not shared
    assert all(p.requires_grad for p in policy.parameters())


def test_a_snapshot_comes_back_from_a_checkpoint() -> None:
    policy, old = build_policy("qwen3", seed=1), ResidentSnapshot(refresh_every=3)
    old.refresh(policy, 0)
    step(policy)
    again = ResidentSnapshot(refresh_every=3)
    again.materialise(policy)
    again.load_state_dict(old.state_dict())
    again.refresh(policy, 1)  # not due: the loaded snapshot stays
    assert same(old_logprobs(again, batches()), old_logprobs(old, batches()))
    again.refresh(policy, 3)
    assert same(list(again.snapshot.parameters()), list(policy.parameters()))


def test_the_cached_form_adds_nothing_to_a_checkpoint() -> None:
    old = CachedLogProbs()
    old.refresh(build_policy("qwen3"), 0)
    assert old.state_dict() == {}


@pytest.mark.parametrize("every", [0, -1])
@pytest.mark.parametrize("form", [CachedLogProbs, ResidentSnapshot])
def test_refresh_every_below_one_is_refused(form: type[OldPolicy], every: int) -> None:
    with pytest.raises(UserError, match=f"is {every}; it must be at least 1"):
        form(refresh_every=every)


def test_cached_logprobs_cannot_outlive_an_iteration() -> None:
    with pytest.raises(UserError, match="CachedLogProbs keeps no weights") as caught:
        CachedLogProbs(refresh_every=2)
    assert caught.value.fix is not None
    assert "ResidentSnapshot" in caught.value.fix
