"""A plug-in for tests: responses that go on after their context was compacted, so rollouts have one or two rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from gspo_lightning.core.rows import SampledRow, join_rows
from gspo_lightning.core.types import Prompt, Rollout, SamplingParams
from gspo_lightning.policy.policy import Policy
from gspo_lightning.rollouts import Draws, GroupedSampler, RolloutSource


class Compacting(RolloutSource):
    """Every second response goes on after the last token of the prompt and the first of the response alone."""

    def __init__(self, also: bool = True) -> None:
        self.also, self.sampler = also, GroupedSampler()

    def local(self) -> RolloutSource:
        return self.sampler

    def for_evaluation(self) -> RolloutSource:
        return GroupedSampler()

    def generate(
        self, policy: Policy, prompts: Sequence[Prompt], *, group_size: int, sampling: SamplingParams, draws: Draws,
        version: int = 0, **_: Any,
    ) -> list[list[Rollout]]:  # fmt: skip
        request: dict[str, Any] = {"sampling": sampling, "draws": draws, "version": version}
        groups = self.sampler.generate(policy, prompts, group_size=group_size, **request)
        return [[self._longer(policy, r, request) if r.sample % 2 and self.also else r for r in g] for g in groups]

    def _longer(self, policy: Policy, first: Rollout, request: dict[str, Any]) -> Rollout:
        context = (first.prompt.token_ids[-1], int(first.token_ids[0]))
        short = dataclasses.replace(first.prompt, id=100_000 * first.sample + first.prompt.id, token_ids=context)
        ((second,),) = self.sampler.generate(policy, [short], group_size=1, **request)
        rows = [
            SampledRow(first.prompt.token_ids, first.token_ids, first.response_mask, first.logprobs),
            SampledRow(context, second.token_ids, second.response_mask, second.logprobs),
        ]
        return dataclasses.replace(
            first, **join_rows(rows), finish_reason=second.finish_reason, text=first.text + second.text
        )
