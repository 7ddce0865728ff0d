"""What a real vLLM server samples, and that it samples with the newest weights."""

from __future__ import annotations

from contextlib import closing

import served
import torch

from gspo_lightning.packing import make_micro_batch
from gspo_lightning.policy import Policy
from gspo_lightning.randomness import Purpose
from gspo_lightning.rollouts import Draws, VLLMServer
from gspo_lightning.types import Prompt, Rollout, SamplingParams

pytestmark = served.VLLM
DRAWS = Draws.of(0, Purpose.TRAIN_SAMPLING, 2)
SAMPLING = SamplingParams(14, temperature=1.3, stop_token_ids=(1, 5, 9, 20))


def largest_gap(policy: Policy, groups: list[list[Rollout]]) -> float:
    """Nats, over all response tokens."""
    rollouts = [r for group in groups for r in group]
    for rollout in rollouts:
        rollout.reward = 0.0
    batch = make_micro_batch(rollouts)
    with torch.no_grad():
        logprobs, _ = policy(batch, SAMPLING.temperature)
    assert batch.behaviour_logprobs is not None
    return float(((logprobs - batch.behaviour_logprobs).abs() * batch.response_mask).max())


def test_probabilities_are_the_trainers_after_every_synchronisation(
    url: str, policy: Policy, prompts: list[Prompt]
) -> None:
    """A long prompt is among them: what the prefix cache remembers of it belongs to the weights before."""
    long = Prompt(99, "1+" * 40, tuple(policy.tokenizer("1+" * 40)["input_ids"]))
    assert len(long.token_ids) > 2 * served.BLOCK
    with closing(VLLMServer([url])) as source:
        source.open(128)
        for version in (0, 4):
            source.sync_weights(policy, version)
            for _ in range(2):  # the second time from the cache
                asked = [*prompts, long]
                groups = source.generate(policy, asked, group_size=4, sampling=SAMPLING, draws=DRAWS, version=version)
                assert [len(group) for group in groups] == [4] * len(asked)
                assert largest_gap(policy, groups) < 1e-5
            with torch.no_grad():
                for weight in policy.parameters():
                    weight.mul_(1.3)
        assert largest_gap(policy, groups[:-1]) > 0.1  # the comparison tells weights apart
        assert largest_gap(policy, groups[-1:]) > 0.1
