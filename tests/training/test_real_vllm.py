"""A real vLLM server on a CPU; ``make test-vllm`` runs this with an interpreter that has vLLM."""

from __future__ import annotations

import importlib.util
import json
from contextlib import closing
from pathlib import Path

import pytest
import torch

from gspo_lightning.packing import make_micro_batch
from gspo_lightning.policy import ModelSettings, Policy, load_policy
from gspo_lightning.randomness import Purpose
from gspo_lightning.rollouts import Draws, VLLMServer
from gspo_lightning.types import Prompt, Rollout, SamplingParams
from tests.training import runs

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="needs vLLM: make test-vllm"),
]
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


def test_a_real_server_has_the_trainers_probabilities_and_its_newest_weights(prompts: list[Prompt]) -> None:
    policy = load_policy(ModelSettings(config_overrides={"head_dim": 32})).eval()  # its smallest on a CPU
    with closing(VLLMServer()) as source:
        source.open(64)
        for version in (0, 4):
            source.sync_weights(policy, version)
            groups = source.generate(policy, prompts, group_size=4, sampling=SAMPLING, draws=DRAWS, version=version)
            assert [len(group) for group in groups] == [4] * len(prompts)
            assert largest_gap(policy, groups) < 1e-5
            with torch.no_grad():
                for weight in policy.parameters():
                    weight.mul_(1.3)
        assert largest_gap(policy, groups) > 0.1  # the comparison tells weights apart


def test_training_through_a_real_server(tmp_path: Path) -> None:
    """Every synchronisation is followed by the probe, which stops the run if weights have not arrived."""
    run = runs.fit(
        tmp_path, *runs.UNTAUGHT, '--model.config_overrides={"head_dim": 32}', "--data.rollouts=VLLMServer",
        "--data.record_rollouts=true",
    )  # fmt: skip
    rows = [json.loads(line) for file in sorted((run / "rollouts").iterdir()) for line in file.open()]
    assert [(r["iteration"], r["policy_version"]) for r in rows] == [(0, 0)] * 32 + [(1, 2)] * 32
    assert all(len(r["logprobs"]) == len(r["completion_ids"]) > 0 for r in rows)
