"""``VLLMServer`` in front of a toy server that draws what the other sources draw, so that one contract fits all."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Any

from gspo_lightning.core.types import Prompt, Rollout, SamplingParams
from gspo_lightning.policy.policy import Policy
from gspo_lightning.rollouts import Draws, RolloutSource, VLLMServer
from tests.rollouts.toy_server import ToyServer


class ThroughHTTP(RolloutSource):
    """Everything that travels does so: weights, token ids, log-probabilities, ends."""

    def generate(
        self, policy: Policy, prompts: Sequence[Prompt], *, group_size: int, sampling: SamplingParams, draws: Draws,
        version: int = 0, **options: Any,
    ) -> list[list[Rollout]]:  # fmt: skip
        toy = ToyServer(prompts={(p.token_ids, pixels_of(policy, p)): p for p in prompts})
        with toy, closing(VLLMServer([toy.url])) as source:
            source.open(0)
            source.sync_weights(policy, version)
            toy.draws = draws
            return source.generate(
                policy, prompts, group_size=group_size, sampling=sampling, draws=draws, version=version, **options
            )


def pixels_of(policy: Policy, prompt: Prompt) -> bytes:
    """What tells apart prompts with the same tokens and other pictures."""
    if policy.image_processor is None or not prompt.media:
        return b""
    return policy.image_processor.pixels(prompt.media)[0].numpy().tobytes()
