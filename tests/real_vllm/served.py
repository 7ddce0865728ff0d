"""Real vLLM, and what it has to do wherever it runs. Tests share one server: what it costs is its start."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GenerationConfig

from gspo_lightning.core.randomness import Purpose
from gspo_lightning.core.types import FinishReason, Prompt, Rollout, SamplingParams
from gspo_lightning.policy.load.loading import load_policy
from gspo_lightning.policy.load.model_settings import ModelSettings
from gspo_lightning.policy.packing.batches import make_micro_batch
from gspo_lightning.policy.policy import Policy
from gspo_lightning.rollouts import Draws, RolloutSource
from gspo_lightning.rollouts.serving import watchdog
from gspo_lightning.rollouts.serving.endpoint import Endpoint
from gspo_lightning.rollouts.serving.process import LocalServer
from gspo_lightning.rollouts.vllm.local import LocalVLLM
from tests.runs import runs

VLLM = [
    pytest.mark.vllm,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="needs vLLM: make test-vllm"),
]
OVERRIDES = {"head_dim": 32}
"""Of the tiny model: vLLM's attention on a CPU takes no smaller heads."""
HEADS = f"--model.config_overrides={json.dumps(OVERRIDES)}"
QUICK_START: dict[str, Any] = {
    "options": {"distributed_executor_backend": "uni"},
    "environment": {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"},
}
"""One process fewer imports vLLM: a third of a start."""
BLOCK = 32
"""Tokens of a block of the key-value cache; only whole ones are found again by the prefix cache."""
DRAWS = Draws.of(0, Purpose.TRAIN_SAMPLING, 2)
SAMPLING = SamplingParams(14, temperature=1.3, stop_token_ids=(1, 5, 9, 20))
GROUP, VERSION = 4, 8


def tiny_policy() -> Policy:
    """The quickstart's model, untaught."""
    return load_policy(ModelSettings(config_overrides=OVERRIDES)).eval()


def start_server(folder: Path, endpoint: Endpoint) -> LocalServer:
    """A server with other weights than anybody's; returns when it answers."""
    tiny_policy().save_pretrained(folder)
    options = {"block_size": BLOCK, "enable_scale_out": True, **QUICK_START["options"]}
    local = LocalVLLM(sys.executable, None, "float32", options, QUICK_START["environment"])
    process = local.start(folder, endpoint, folder, number=0, device="cpu", dtype="float32", longest=128)
    while status(endpoint, "/health") != 200:
        assert process.running, process.tail()
        time.sleep(0.2)
    return process


def status(endpoint: Endpoint, path: str, method: str = "GET", **headers: str) -> int:
    """What a request to a port is answered with; 0: nothing answers."""
    if not headers and endpoint.key:
        headers = {"Authorization": f"Bearer {endpoint.key}"}
    data = None if method == "GET" else b"{}"
    asked = urllib.request.Request(endpoint.url + path, method=method, headers=headers, data=data)
    try:
        with urllib.request.urlopen(asked, timeout=30) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as error:
        return error.code
    except (urllib.error.URLError, OSError):
        return 0


def processes_of(server: LocalServer) -> list[int]:
    """The server and its children, without their guard."""
    return watchdog._descendants(server.process.pid)


# what every source that draws its own random numbers has to do --------------------------------------------------------


def sample(
    source: RolloutSource,
    policy: Policy,
    prompts: Sequence[Prompt],
    group: int,
    sampling: SamplingParams = SAMPLING,
    version: int = VERSION,
) -> list[list[Rollout]]:
    return source.generate(policy, prompts, group_size=group, sampling=sampling, draws=DRAWS, version=version)


def tokens(groups: Sequence[Sequence[Rollout]]) -> list[list[int]]:
    return [r.token_ids.tolist() for group in groups for r in group]


def gaps(policy: Policy, groups: Sequence[Sequence[Rollout]], temperature: float) -> list[torch.Tensor]:
    """Nats between the source's log-probabilities and the trainer's, of each token of each response."""
    rollouts = [r for group in groups for r in group]
    for rollout in rollouts:
        rollout.reward = 0.0
    batch = make_micro_batch(rollouts)
    with torch.no_grad():
        logprobs, _ = policy(batch, temperature)
    assert batch.behaviour_logprobs is not None
    found = (logprobs - batch.behaviour_logprobs).abs()
    return [row[: rollout.length] for row, rollout in zip(found, rollouts, strict=True)]


def largest_gap(policy: Policy, groups: Sequence[Sequence[Rollout]]) -> float:
    """The same of all tokens, the largest."""
    return max(float(row.max()) for row in gaps(policy, groups, SAMPLING.temperature))


def check_contract(source: RolloutSource, policy: Policy, prompts: list[Prompt]) -> None:
    """Groups in order, honest ends, the trainer's log-probabilities, nothing of the model's generation config."""
    theirs = {"do_sample": True, "temperature": 0.1, "top_k": 2, "repetition_penalty": 4.0, "eos_token_id": [1, 4, 7]}
    policy.model.generation_config.update(**theirs)
    source.sync_weights(policy, VERSION)
    seen: list[Sequence[Rollout]] = []
    source.on_group = seen.append
    groups = sample(source, policy, prompts, GROUP)
    source.on_group = None
    assert sorted(map(id, (g[0] for g in seen))) == sorted(map(id, (g[0] for g in groups)))
    assert [[(r.prompt, r.sample) for r in group] for group in groups] == [
        [(prompt, k) for k in range(GROUP)] for prompt in prompts
    ]
    assert len({len(ids) for ids in tokens(groups)}) > 3  # the case is worth something: rows end at different steps
    for rollout in (r for group in groups for r in group):
        ids = rollout.token_ids.tolist()
        ended = ids[-1] in SAMPLING.stop_token_ids
        assert rollout.finish_reason is (FinishReason.STOP if ended else FinishReason.LENGTH)
        assert ended or len(ids) == SAMPLING.max_response_tokens
        assert not set(ids[:-1]) & set(SAMPLING.stop_token_ids)
        assert rollout.policy_version == VERSION
        assert rollout.text == policy.tokenizer.decode(ids, skip_special_tokens=True)
    assert largest_gap(policy, groups) < 1e-5
    policy.model.generation_config = GenerationConfig()
    check_other_settings(source, policy, prompts)


def check_other_settings(source: RolloutSource, policy: Policy, prompts: list[Prompt]) -> None:
    """Greedy is transformers' own, top-k bounds what is sampled, stop strings end with what completes them."""
    greedy = SamplingParams(12, temperature=0.0, stop_token_ids=(1,))
    found = tokens(sample(source, policy, prompts, 1, greedy))
    for prompt, ids in zip(prompts, found, strict=True):
        row = torch.tensor([prompt.token_ids])
        config = GenerationConfig(max_new_tokens=12, do_sample=False, eos_token_id=1, pad_token_id=0)
        theirs = policy.model.generate(row, generation_config=config)
        assert ids == theirs[0, row.shape[1] :].tolist()
    assert tokens(sample(source, policy, prompts, 1, SamplingParams(12, top_k=1, stop_token_ids=(1,)))) == found
    stop = policy.tokenizer.decode(found[0])[3:5]
    (rollout,) = sample(source, policy, prompts[:1], 1, dataclasses.replace(greedy, stop_strings=(stop,)))[0]
    assert rollout.finish_reason is FinishReason.STOP
    assert rollout.text.index(stop) + len(stop) == len(rollout.text)


def check_that_weights_arrive(source: RolloutSource, policy: Policy, prompts: list[Prompt]) -> None:
    """A long prompt is among them: what the prefix cache remembers of it belongs to the weights before."""
    long = Prompt(99, "1+" * 40, tuple(policy.tokenizer("1+" * 40)["input_ids"]))
    assert len(long.token_ids) > 2 * BLOCK
    asked = [*prompts, long]
    first = [sample(source, policy, asked, GROUP) for _ in range(2)]  # the second time from the cache
    assert max(largest_gap(policy, groups) for groups in first) < 1e-5
    with torch.no_grad():
        for weight in policy.parameters():
            weight.mul_(1.3)
    groups = sample(source, policy, asked, GROUP)  # not handed over: the source has a copy
    assert min(largest_gap(policy, groups[:-1]), largest_gap(policy, groups[-1:])) > 0.1
    source.sync_weights(policy, VERSION + 1)
    assert largest_gap(policy, sample(source, policy, asked, GROUP, version=VERSION + 1)) < 1e-5
    source.sync_weights(policy, VERSION)


def check_learnt(run: Path) -> None:
    """The quickstart's promise, with the newest weights in every iteration."""
    summary, curves = runs.summary(run), runs.scalars(run)
    assert summary["accuracy_before"] <= 0.5
    assert summary["accuracy_after"] > 0.9
    assert len(curves["noise/sampler_logprob_gap"]) >= summary["iterations"]
    assert max(gap for _, gap in curves["noise/sampler_logprob_gap"]) < 1e-5
