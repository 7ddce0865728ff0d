"""Going on with responses that have begun: in pieces they are what they are in one go."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import pytest
import torch

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.randomness import Purpose
from gspo_lightning.core.types import FinishReason, Prompt, Rollout, SamplingParams
from gspo_lightning.policy.policy import Policy
from gspo_lightning.rollouts import Draws, GroupedSampler, ResponsePrefix, RolloutSource, TransformersGenerate
from tests.support import model_families

DRAWS = Draws.of(0, Purpose.TRAIN_SAMPLING, 2)
SAMPLING = SamplingParams(14, stop_token_ids=(1, 5, 9, 20))
GROUP = 5
SOURCES: dict[str, RolloutSource] = {
    "grouped": GroupedSampler(),
    "grouped-few-rows": GroupedSampler(max_rows=7),
    "grouped-compact-always": GroupedSampler(compact_at=1e-9),
    "generate": TransformersGenerate(),
    "generate-small-batches": TransformersGenerate(batch_size=3),
}
every_source = pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES.keys())


@pytest.fixture(params=["packed", "padded"])
def policy(request: pytest.FixtureRequest) -> Policy:
    found = model_families.build_policy("qwen3", 0, 3.0)
    found.packed = request.param == "packed"
    return found


def beginning(rollout: Rollout, tokens: int, token_budget: int) -> ResponsePrefix:
    """The response goes on after its first ``tokens``."""
    ids = tuple(rollout.token_ids.tolist()[:tokens])
    context = (*rollout.prompt.token_ids, *ids)
    return ResponsePrefix(rollout.prompt, rollout.sample, context, drawn=tokens, token_budget=token_budget, written=ids)


def whole(source: RolloutSource, policy: Policy, prompts: list[Prompt], sampling: SamplingParams) -> list[Rollout]:
    groups = source.generate(policy, prompts, group_size=GROUP, sampling=sampling, draws=DRAWS)
    return [rollout for group in groups for rollout in group]


@pytest.mark.thorough("packed-generate-small-batches", "padded-generate-small-batches")
@every_source
def test_a_response_in_two_pieces_is_the_response_in_one(
    source: RolloutSource, policy: Policy, prompts: list[Prompt]
) -> None:
    wanted = whole(source, policy, prompts, SAMPLING)
    taken = [min(i % 5, len(r.token_ids) - 1) for i, r in enumerate(wanted)]  # 0 to 4 tokens are there already
    assert set(taken) == {0, 1, 2, 3, 4}
    beginnings = [beginning(r, n, 14 - n) for r, n in zip(wanted, taken, strict=True)]
    found = source.extend(policy, beginnings, sampling=SAMPLING, draws=DRAWS, version=3)
    for new, old, n in zip(found, wanted, taken, strict=True):
        assert new.token_ids.tolist() == old.token_ids.tolist()[n:]
        assert new.logprobs is not None
        assert old.logprobs is not None
        torch.testing.assert_close(new.logprobs, old.logprobs[n:], rtol=0, atol=1e-5)
        assert (new.prompt, new.sample, new.finish_reason) == (old.prompt, old.sample, old.finish_reason)
        assert new.policy_version == 3


@every_source
def test_every_response_has_its_own_room(source: RolloutSource, policy: Policy, prompts: list[Prompt]) -> None:
    wanted = whole(source, policy, prompts, SAMPLING)
    rooms = [1 + i % 6 for i in range(len(wanted))]
    beginnings = [beginning(r, 0, token_budget) for r, token_budget in zip(wanted, rooms, strict=True)]
    found = source.extend(policy, beginnings, sampling=SAMPLING, draws=DRAWS)
    for new, old, token_budget in zip(found, wanted, rooms, strict=True):
        assert new.token_ids.tolist() == old.token_ids.tolist()[:token_budget]
        stopped = not old.truncated and len(old.token_ids) <= token_budget
        assert new.finish_reason is (FinishReason.STOP if stopped else FinishReason.LENGTH)


@pytest.mark.thorough("packed-generate-small-batches", "padded-generate-small-batches")
@every_source
def test_a_stop_string_may_begin_before_the_cut(source: RolloutSource, policy: Policy, prompts: list[Prompt]) -> None:
    free = whole(source, policy, prompts, SamplingParams(14))
    stop = free[0].text[4:6]
    wanted = whole(source, policy, prompts, SamplingParams(14, stop_strings=(stop,)))
    assert wanted[0].text.endswith(stop)
    first = replace(beginning(free[0], 5, 9), written=tuple(free[0].token_ids.tolist()[:5]))
    found = source.extend(policy, [first], sampling=SamplingParams(14, stop_strings=(stop,)), draws=DRAWS)
    assert found[0].token_ids.tolist() == wanted[0].token_ids.tolist()[5:]
    assert found[0].finish_reason is FinishReason.STOP


@pytest.mark.thorough("packed-source3", "padded-source3")
@pytest.mark.parametrize("source", [s for name, s in SOURCES.items() if name != "generate"])
def test_enough_cuts_the_others_and_they_can_go_on(
    source: RolloutSource, policy: Policy, prompts: list[Prompt]
) -> None:
    wanted = whole(source, policy, prompts, SAMPLING)
    seen: list[int] = []

    def enough(ended: Collection[int]) -> bool:
        seen.append(len(ended))
        return len(ended) >= 6

    starts = [beginning(r, 0, 14) for r in wanted]
    cut = source.extend(policy, starts, sampling=SAMPLING, draws=DRAWS, enough=enough)
    assert seen == sorted(seen)
    open_ = [r for r in cut if r.finish_reason is FinishReason.CUT]
    assert 0 < len(open_) <= len(wanted) - 6
    assert len(cut) == len(wanted)
    for piece, old in zip(cut, wanted, strict=True):
        ids = piece.token_ids.tolist()
        assert ids == old.token_ids.tolist()[: len(ids)]
        if piece.finish_reason is not FinishReason.CUT:
            assert len(ids) == len(old.token_ids)
    rest = source.extend(
        policy, [beginning(r, len(r.token_ids), 14 - len(r.token_ids)) for r in open_], sampling=SAMPLING, draws=DRAWS
    )
    ends = {(r.prompt.id, r.sample): r.token_ids.tolist() for r in wanted}
    for piece, more in zip(open_, rest, strict=True):
        assert [*piece.token_ids.tolist(), *more.token_ids.tolist()] == ends[piece.prompt.id, piece.sample]


@every_source
def test_nothing_to_extend(source: RolloutSource, policy: Policy) -> None:
    assert source.extend(policy, [], sampling=SAMPLING, draws=DRAWS) == []


def test_a_source_that_cannot_says_so(policy: Policy) -> None:
    class OnlyWhole(RolloutSource):
        def generate(self, policy: Policy, prompts: Sequence[Prompt], **_: object) -> list[list[Rollout]]:  # type: ignore[override]
            return []

    with pytest.raises(UserError, match="OnlyWhole, which cannot continue"):
        OnlyWhole().extend(policy, [], sampling=SAMPLING, draws=DRAWS)
