"""SmolLM2-135M-Instruct through vLLM: the sampler's greedy answers, and the noise of its log-probabilities.

The model is the folder that GGUF weights were converted to once: ``make real-model``, then any command with its file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest
import torch
import yaml

from gspo_lightning.core.types import Prompt, Rollout, SamplingParams
from gspo_lightning.data.prompts import WordProblems
from gspo_lightning.data.prompts.encode import encode_prompts
from gspo_lightning.policy.load.loading import load_policy
from gspo_lightning.policy.load.model_settings import ModelSettings
from gspo_lightning.policy.policy import Policy
from gspo_lightning.rollouts import GroupedSampler, RolloutSource, VLLMEngine
from tests import ROOT
from tests.real_vllm import served

CLIP = 3e-4
"""GSPO's lower clip range."""
TEMPERATURE = 0.8
PROMPTS, GROUP, LIMIT = 6, 4, 32


def converted() -> Path | None:
    """The converted folder of SmolLM2-135M-Instruct."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    for file in sorted((cache / "gspo_lightning" / "gguf").glob("*/config.json")):
        config = json.loads(file.read_text())
        if (config.get("model_type"), config.get("hidden_size"), config.get("num_hidden_layers")) == ("llama", 576, 30):
            return file.parent
    return None


pytestmark = [
    *served.VLLM,
    pytest.mark.skipif(converted() is None, reason="the model is not there: make real-model test-real-model"),
]


@pytest.fixture(scope="module")
def policy() -> Policy:
    return load_policy(ModelSettings(str(converted()))).eval()


@pytest.fixture(scope="module")
def prompts(policy: Policy) -> list[Prompt]:
    """Held-out problems as configs/smollm2.yaml asks them, after four worked examples."""
    examples = yaml.safe_load((ROOT / "configs" / "smollm2.yaml").read_text())["data"]["system_prompt"]
    records = WordProblems("held_out", PROMPTS).records()
    return encode_prompts(records, policy.tokenizer, max_prompt_tokens=256, system_prompt=examples)


def greedy(source: RolloutSource, policy: Policy, prompts: Sequence[Prompt]) -> list[list[int]]:
    sampling = SamplingParams(LIMIT, temperature=0.0, stop_token_ids=tuple(policy.eos_token_ids))
    return served.tokens(served.sample(source, policy, prompts, 1, sampling))


def noise(policy: Policy, groups: list[list[Rollout]]) -> tuple[float, float]:
    """``noise/sampler_logprob_gap`` and ``noise/sampler_sequence_rms``, computed again."""
    rows = served.gaps(policy, groups, TEMPERATURE)
    signed = [
        float((row.logprobs - mine).mean())
        for row, mine in zip((r for g in groups for r in g), logprobs(policy, groups), strict=True)
        if row.logprobs is not None
    ]
    return float(torch.cat(rows).mean()), (sum(x * x for x in signed) / len(signed)) ** 0.5


def logprobs(policy: Policy, groups: list[list[Rollout]]) -> list[torch.Tensor]:
    rollouts = [r for group in groups for r in group]
    with torch.no_grad():
        found, _ = policy(served.make_micro_batch(rollouts), TEMPERATURE)
    return [row[: rollout.length] for row, rollout in zip(found, rollouts, strict=True)]


def test_answers_and_noise_of_real_weights(policy: Policy, prompts: list[Prompt]) -> None:
    sampling = SamplingParams(LIMIT, temperature=TEMPERATURE, stop_token_ids=tuple(policy.eos_token_ids))
    own = greedy(GroupedSampler(), policy, prompts)
    with closing(VLLMEngine(dtype="float32")) as source:
        source.open(288)
        source.sync_weights(policy, served.VERSION)  # the probe is within its tolerance, or this fails
        theirs = greedy(source, policy, prompts)
        groups = served.sample(source, policy, prompts, GROUP, sampling)
    gap, rms = noise(policy, groups)
    print(f"gap {gap:.2g}, sequence rms {rms:.2g} nats")
    assert theirs == own
    assert gap < 1e-5
    assert rms < CLIP / 10  # the engine's log-probabilities may serve as the old ones
