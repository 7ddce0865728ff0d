"""Adapters reach real vLLM as adapters: its log-probabilities are those of the trainer, and old ones are not used."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest
import torch

from gspo_lightning.policy.lora import LoRA, add_adapters
from gspo_lightning.policy.policy import Policy
from gspo_lightning.rollouts import VLLMEngine, VLLMServer
from gspo_lightning.rollouts.source import RolloutSource
from gspo_lightning.types import Prompt
from tests.real_vllm import served

pytestmark = served.VLLM
LORA: dict[str, Any] = {"enable_lora": True, "block_size": served.BLOCK}


@pytest.fixture
def adapted(policy: Policy) -> Policy:
    add_adapters(policy.model, LoRA(r=4), seed=0)
    shake(policy)
    return policy.eval()


def shake(policy: Policy) -> None:
    """An update of the adapters."""
    with torch.no_grad():
        for name, weight in policy.named_parameters():
            if "lora_B" in name:
                weight.add_(0.3 * torch.randn_like(weight))


def check(source: RolloutSource, policy: Policy, prompts: list[Prompt]) -> None:
    """A long prompt is among them: what the prefix cache remembers of it belongs to the adapters before."""
    asked = [*prompts, Prompt(99, "1+" * 40, tuple(policy.tokenizer("1+" * 40)["input_ids"]))]
    source.open(128)
    for version in range(3):
        source.sync_weights(policy, version)
        first = [served.sample(source, policy, asked, 4, version=version) for _ in range(2)]  # then from the cache
        assert max(served.largest_gap(policy, groups) for groups in first) < 2e-5
        shake(policy)
        assert served.largest_gap(policy, first[1]) > 0.1


def test_a_server_takes_adapters_alone(adapted: Policy, prompts: list[Prompt]) -> None:
    options = LORA | served.QUICK_START["options"]
    with closing(VLLMServer(options=options, environment=served.QUICK_START["environment"])) as source:
        check(source, adapted, prompts)
        assert source.weight_sync.adapters
        (server,) = source.servers.pool.servers
        assert server.process is not None
        log = server.process.log.read_text()
        assert log.count("POST /collective_rpc") == 1  # the frozen weights
        assert log.count("POST /v1/load_lora_adapter") == 3


def test_the_engine_takes_adapters_alone(adapted: Policy, prompts: list[Prompt]) -> None:
    with closing(VLLMEngine(options=LORA)) as source:
        check(source, adapted, prompts)
