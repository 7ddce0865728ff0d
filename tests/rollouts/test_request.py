"""``generate`` and ``extend`` of a source: one request, or its fields as arguments, as plug-ins are written."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Sequence
from typing import Any

import pytest

from gspo_lightning.core.signatures import called_with
from gspo_lightning.core.types import Prompt, Rollout, SamplingParams
from gspo_lightning.policy.load.loading import load_policy
from gspo_lightning.policy.load.model_settings import ModelSettings
from gspo_lightning.policy.policy import Policy
from gspo_lightning.rollouts import (
    AgentRollouts,
    EnvironmentRollouts,
    GroupedSampler,
    Recorded,
    TransformersGenerate,
    VLLMEngine,
    VLLMServer,
)
from gspo_lightning.rollouts.drawing import Draws
from gspo_lightning.rollouts.source import (
    ContinuationRequest,
    GenerationRequest,
    Progress,
    ResponsePrefix,
    RolloutSource,
)

BUILT_IN = (
    AgentRollouts, EnvironmentRollouts, GroupedSampler, Recorded, TransformersGenerate, VLLMEngine, VLLMServer,
)  # fmt: skip
SAMPLING = SamplingParams(4)
DRAWS = Draws(3)


class WithFields(RolloutSource):
    """As a plug-in was written before there was a request."""

    def generate(  # type: ignore[override]  # one argument is annotated otherwise: progress is left out
        self,
        policy: Policy,
        prompts: Sequence[Prompt],
        *,
        group_size: int,
        sampling: SamplingParams,
        draws: Draws,
        version: int = 0,
        **_: Any,
    ) -> list[list[Rollout]]:
        return GroupedSampler().generate(
            policy, prompts, group_size=group_size, sampling=sampling, draws=draws, version=version
        )


class WithRequest(RolloutSource):
    def generate(self, request: GenerationRequest) -> list[list[Rollout]]:  # type: ignore[override]
        self.asked = request
        fields = {field.name: getattr(request, field.name) for field in dataclasses.fields(request)}
        return GroupedSampler().generate(**fields)


class Decorated(RolloutSource):
    @called_with(GenerationRequest)
    def generate(self, request: GenerationRequest) -> list[list[Rollout]]:
        return GroupedSampler().generate(
            request.policy,
            request.prompts,
            group_size=request.group_size,
            sampling=request.sampling,
            draws=request.draws,
            version=request.version,
        )


class Passing(GroupedSampler):
    """As plug-ins wrap a source: whatever comes goes on."""

    def generate(self, *args: Any, **options: Any) -> list[list[Rollout]]:
        return super().generate(*args, **options)


class OnePassing(GroupedSampler):
    def generate(self, policy: Policy, prompts: Sequence[Prompt], **options: Any) -> list[list[Rollout]]:
        return super().generate(policy, prompts, **options)


class Super(GroupedSampler):
    def generate(self, request: GenerationRequest) -> list[list[Rollout]]:  # type: ignore[override]
        return super().generate(request)  # type: ignore[call-arg, arg-type]  # annotated with the fields


class Mixin:
    """No source by itself: it finds the next class's ``generate`` as any mix-in does."""

    def generate(self, request: GenerationRequest) -> list[list[Rollout]]:
        assert request.size == 4
        groups: list[list[Rollout]] = super().generate(request)  # type: ignore[misc]
        return groups


class Mixed(Mixin, GroupedSampler):  # type: ignore[misc]
    pass


@pytest.fixture(scope="module")
def policy() -> Policy:
    return load_policy(ModelSettings(seed=1)).eval()


def sampled(source: RolloutSource, policy: Policy, progress: Progress | None = None) -> list[list[Any]]:
    prompts = [Prompt(0, "", (3, 4)), Prompt(1, "", (5, 6, 7))]
    groups = source.generate(
        policy, prompts, group_size=2, sampling=SAMPLING, draws=DRAWS, version=9, progress=progress
    )
    return [[(r.prompt.id, r.sample, r.policy_version, r.token_ids.tolist()) for r in group] for group in groups]


@pytest.mark.parametrize("source", [WithFields, WithRequest, Decorated, Passing, OnePassing, Super, Mixed])
def test_a_source_may_take_the_request_or_its_fields(source: type[RolloutSource], policy: Policy) -> None:
    wanted = sampled(GroupedSampler(), policy)
    assert [[row[:3] for row in group] for group in wanted] == [[(p, k, 9) for k in range(2)] for p in range(2)]
    assert sampled(source(), policy) == wanted


def test_a_request_holds_what_the_call_said(policy: Policy) -> None:
    source = WithRequest()
    seen: list[tuple[int, int]] = []
    sampled(source, policy, lambda done, total: seen.append((done, total)))
    request = source.asked
    assert (request.policy is policy, request.group_size, request.version, request.size) == (True, 2, 9, 4)
    assert [(p.prompt.id, p.sample, p.token_budget) for p in request.prefixes] == [
        (0, 0, 4), (0, 1, 4), (1, 0, 4), (1, 1, 4),
    ]  # fmt: skip
    assert seen[-1] == (4, 4)


def test_every_built_in_source_takes_the_fields_of_the_request() -> None:
    names = [field.name for field in dataclasses.fields(GenerationRequest)]
    for source in (RolloutSource, *BUILT_IN):
        assert list(inspect.signature(source.generate).parameters) == ["self", *names], source


class ExtendsWithFields(RolloutSource):
    """As a plug-in was written before there was a request to continue."""

    def generate(self, *_: Any, **__: Any) -> list[list[Rollout]]:
        raise NotImplementedError

    def extend(  # type: ignore[override]  # one argument is annotated otherwise: enough is left out
        self,
        policy: Policy,
        beginnings: Sequence[ResponsePrefix],
        *,
        sampling: SamplingParams,
        draws: Draws,
        version: int = 0,
        **_: Any,
    ) -> list[Rollout]:
        return GroupedSampler().extend(policy, beginnings, sampling=sampling, draws=draws, version=version)


class ExtendsWithRequest(GroupedSampler):
    def extend(self, request: ContinuationRequest) -> list[Rollout]:  # type: ignore[override]
        self.asked = request
        return super().extend(request)  # type: ignore[call-arg, arg-type]  # annotated with the fields


class ExtendsPassing(GroupedSampler):
    def extend(self, policy: Policy, beginnings: Sequence[ResponsePrefix], **options: Any) -> list[Rollout]:
        return super().extend(policy, beginnings, **options)


class ExtendingMixin:
    def extend(self, request: ContinuationRequest) -> list[Rollout]:
        assert len(request.beginnings) == 2
        pieces: list[Rollout] = super().extend(request)  # type: ignore[misc]
        return pieces


class ExtendsMixed(ExtendingMixin, GroupedSampler):  # type: ignore[misc]
    pass


def extended(source: RolloutSource, policy: Policy) -> list[Any]:
    beginnings = [ResponsePrefix(Prompt(k, "", (3, 4)), 1, (3, 4, 5), drawn=1, token_budget=3) for k in range(2)]
    pieces = source.extend(policy, beginnings, sampling=SAMPLING, draws=DRAWS, version=9)
    return [(r.prompt.id, r.sample, r.policy_version, r.token_ids.tolist()) for r in pieces]


@pytest.mark.parametrize("source", [ExtendsWithFields, ExtendsWithRequest, ExtendsPassing, ExtendsMixed])
def test_a_source_may_extend_by_a_request_or_its_fields(source: type[RolloutSource], policy: Policy) -> None:
    wanted = extended(GroupedSampler(), policy)
    assert [row[:3] for row in wanted] == [(0, 1, 9), (1, 1, 9)]
    assert extended(source(), policy) == wanted


def test_a_request_to_continue_holds_what_the_call_said(policy: Policy) -> None:
    source = ExtendsWithRequest()
    extended(source, policy)
    request = source.asked
    assert (request.policy is policy, request.version, request.enough, len(request.beginnings)) == (True, 9, None, 2)
    with pytest.raises(TypeError, match="draws"):
        source.extend(policy, [], sampling=SAMPLING)  # type: ignore[call-arg]


def test_every_source_that_extends_takes_the_fields_of_the_request() -> None:
    names = [field.name for field in dataclasses.fields(ContinuationRequest)]
    for source in (RolloutSource, GroupedSampler, TransformersGenerate, VLLMEngine, VLLMServer):
        assert list(inspect.signature(source.extend).parameters) == ["self", *names], source


def test_a_forgotten_argument_is_named(policy: Policy) -> None:
    with pytest.raises(TypeError, match="group_size"):
        GroupedSampler().generate(policy, [], sampling=SAMPLING, draws=DRAWS)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="grop_size"):
        WithRequest().generate(policy, [], grop_size=2, sampling=SAMPLING, draws=DRAWS)  # type: ignore[call-arg]
