"""Partial rollouts: complete groups only, and no token lost, doubled or with another version's log-probability."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from gspo_lightning.core.randomness import Purpose
from gspo_lightning.core.types import FinishReason, Prompt, Rollout, SamplingParams
from gspo_lightning.loop.experience.partial import PartialRollouts
from gspo_lightning.policy.packing.batches import make_micro_batch
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.routing import hook_routers
from gspo_lightning.rollouts import Draws, GroupedSampler, ResponsePrefix
from gspo_lightning.rollouts.ending import cut
from tests.support import model_families

DRAWS = Draws.of(0, Purpose.TRAIN_SAMPLING, 2)
SAMPLING = SamplingParams(24, stop_token_ids=(1, 5, 9))
GROUP = 4


@pytest.fixture(scope="module")
def policies() -> list[Policy]:
    """Versions 0 to 4."""
    return [model_families.build_policy("qwen3", seed, 1.0) for seed in range(5)]


def prompt(place: int) -> Prompt:
    number = place % 11
    return Prompt(number, f"{number}", tuple(range(3, 6 + number % 4)))


def pool(in_flight: int = 6, groups: int = 3, max_carry: int = 9) -> PartialRollouts:
    source = GroupedSampler(compact_at=1e-9)
    return PartialRollouts(source, prompt, in_flight=in_flight, groups=groups, max_carry=max_carry)


def call(partial: PartialRollouts, policy: Policy, version: int = 0) -> list[list[Rollout]]:
    return partial.generate(policy, group_size=GROUP, sampling=SAMPLING, draws=DRAWS, version=version)


@pytest.mark.thorough
def test_calls_return_complete_groups_that_are_what_they_would_have_been_whole(policies: list[Policy]) -> None:
    partial, found, carried = pool(), [], 0
    for _ in range(5):
        groups = call(partial, policies[0])
        assert len(groups) == 3
        found += groups
        carried += partial.open_responses
    assert carried > 5  # responses were cut, again and again
    assert len({group[0].prompt.id for group in found} | {g.prompt.id for g in partial.in_flight}) == 11
    prompts = [group[0].prompt for group in found]
    whole = GroupedSampler().generate(policies[0], prompts, group_size=GROUP, sampling=SAMPLING, draws=DRAWS)
    for group, wanted in zip(found, whole, strict=True):
        for a, b in zip(group, wanted, strict=True):
            assert (a.prompt, a.sample, a.text, a.finish_reason) == (b.prompt, b.sample, b.text, b.finish_reason)
            assert a.token_ids.tolist() == b.token_ids.tolist()
            assert a.finish_reason is not FinishReason.CUT


@pytest.mark.thorough
def test_a_token_keeps_version_and_log_probability_of_the_weights_that_sampled_it(policies: list[Policy]) -> None:
    partial, pieces = pool(), 0
    for version, policy in enumerate(policies):
        for rollout in (r for g in call(partial, policy, version) for r in g):
            assert rollout.versions is not None
            assert rollout.logprobs is not None
            assert rollout.policy_version == rollout.versions.max() == rollout.versions[-1] <= version
            assert bool((rollout.versions.diff() >= 0).all())
            rollout.reward = 0.0
            batch = make_micro_batch([rollout], version)
            with torch.no_grad():
                each = torch.stack([p(batch)[0][0] for p in policies])
            own = each.gather(0, rollout.versions.unsqueeze(0))[0]
            torch.testing.assert_close(rollout.logprobs, own, rtol=0, atol=1e-5)
            assert batch.stale is not None
            assert batch.stale[0].tolist() == (rollout.versions < version).tolist()
            pieces += len(set(rollout.versions.tolist())) > 1
    assert pieces > 3


@pytest.mark.parametrize("limit", [0, 1, 2])
def test_no_group_is_carried_further_than_allowed(policies: list[Policy], limit: int) -> None:
    partial, oldest = pool(in_flight=8, groups=2, max_carry=limit), 0
    for version, policy in enumerate(policies):
        groups = call(partial, policy, version)
        assert len(groups) == 2
        oldest = max([oldest, *(g.carried for g in partial.in_flight if g.open)])
        for rollout in (r for g in groups for r in g):
            assert rollout.versions is not None
            assert int(rollout.versions[-1] - rollout.versions[0]) <= limit
    assert oldest == limit


def test_partial_rollouts_sample_nothing_while_enough_groups_wait(policies: list[Policy]) -> None:
    partial = pool(in_flight=8, groups=2, max_carry=0)  # the first call completes all 8
    first = [g[0].prompt.id for g in call(partial, policies[0], 0)]
    assert partial.open_responses == 0
    second = call(partial, policies[1], 1)
    assert first == [0, 1]
    assert [g[0].prompt.id for g in second] == [2, 3]  # the oldest first
    assert {int(v) for g in second for r in g for v in r.versions} == {0}  # type: ignore[union-attr]


def test_recompute_replaces_what_this_version_sampled_and_nothing_else(policies: list[Policy]) -> None:
    partial = pool(in_flight=8, groups=2)
    call(partial, policies[0], 0)
    call(partial, policies[1], 1)
    rows = [r for g in partial.in_flight for r in g.responses]
    before = [r.logprobs for r in rows]
    for row in rows:
        row.logprobs = torch.full_like(row.logprobs, -7.0)  # type: ignore[arg-type]
    partial.recompute(policies[1], 1.0, 1, max_tokens=60)
    kept = changed = 0
    for row, original in zip(rows, before, strict=True):
        assert row.versions is not None
        assert original is not None
        wanted = torch.where(row.versions == 1, original, torch.full_like(original, -7.0))
        torch.testing.assert_close(row.logprobs, wanted, rtol=0, atol=1e-5)
        kept, changed = kept + int((row.versions < 1).sum()), changed + int((row.versions == 1).sum())
    assert kept > 0
    assert changed > 0


def test_the_state_goes_through_a_checkpoint(policies: list[Policy]) -> None:
    partial = pool()
    call(partial, policies[0], 0)
    file = io.BytesIO()
    torch.save(partial.state_dict(), file)
    file.seek(0)
    other = pool()
    other.load_state_dict(torch.load(file, weights_only=True), prompt)
    for version in (1, 2):
        mine, theirs = (call(p, policies[version], version) for p in (partial, other))
        for a, b in zip([r for g in mine for r in g], [r for g in theirs for r in g], strict=True):
            assert (a.prompt, a.sample, a.text, a.finish_reason) == (b.prompt, b.sample, b.text, b.finish_reason)
            assert torch.equal(a.logprobs, b.logprobs)  # type: ignore[arg-type]
            assert torch.equal(a.versions, b.versions)  # type: ignore[arg-type]


def test_a_failure_changes_nothing(policies: list[Policy], monkeypatch: pytest.MonkeyPatch) -> None:
    partial, other = pool(), pool()
    for p in (partial, other):
        call(p, policies[0], 0)
    state = partial.state_dict()
    with monkeypatch.context() as patch:
        patch.setattr(GroupedSampler, "extend", lambda *_, **__: (_ for _ in ()).throw(OSError("gone")))
        with pytest.raises(OSError, match="gone"):
            call(partial, policies[1], 1)
    assert str(partial.state_dict()) == str(state)
    assert [g[0].prompt.id for g in call(partial, policies[1], 1)] == [
        g[0].prompt.id for g in call(other, policies[1], 1)
    ]


class OneByOne(GroupedSampler):
    """Begins with every second response, as servers do that have no room for the others."""

    def extend(self, policy: Policy, beginnings: Sequence[ResponsePrefix], **options: Any) -> list[Rollout]:
        """In the first call half of them; none of those that are left out has a token."""
        options["enough"] = None
        pieces = super().extend(policy, beginnings, **options)
        first = options["version"] == 0
        short = [
            cut(row, 0) if row.sample % 2 == 0 else ending(piece) for row, piece in zip(beginnings, pieces, strict=True)
        ]
        return short if first else pieces


def ending(piece: Rollout) -> Rollout:
    """Its first three tokens, cut."""
    count = min(3, len(piece.token_ids))
    assert piece.routes is not None
    assert piece.logprobs is not None
    context = len(piece.routes) + 1 - len(piece.token_ids)
    return replace(
        piece, token_ids=piece.token_ids[:count], logprobs=piece.logprobs[:count], finish_reason=FinishReason.CUT,
        response_mask=piece.response_mask[:count], routes=piece.routes[: context + count - 1],
    )  # fmt: skip


@pytest.mark.thorough
def test_responses_that_begin_with_different_weights_have_one_prompt() -> None:
    """A prompt is forwarded once for its group, so all of it is replayed with the experts of those that began first."""
    old, new = (model_families.build_policy("qwen3-moe", seed, 1.0) for seed in (0, 1))
    for policy in (old, new):
        policy.routing = hook_routers(policy.backbone, "R3")
    partial = PartialRollouts(OneByOne(), prompt, in_flight=2, groups=2, max_carry=9)
    assert call(partial, old, 0) == []
    begun = {g.prompt.id: g.responses[1].routes for g in partial.in_flight}
    groups = call(partial, new, 1)
    assert len(groups) == 2
    for group in groups:
        count = len(group[0].prompt.token_ids)
        wanted = begun[group[0].prompt.id]
        assert wanted is not None
        apart = GroupedSampler().generate(new, [group[0].prompt], group_size=1, sampling=SAMPLING, draws=DRAWS)[0][0]
        assert apart.routes is not None
        assert not torch.equal(wanted[:count], apart.routes[:count])
        for response in group:
            assert response.routes is not None
            assert response.routes.shape[0] == count + response.length - 1
            assert torch.equal(response.routes[:count], wanted[:count])
