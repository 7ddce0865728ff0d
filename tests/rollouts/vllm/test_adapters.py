"""Adapters travel as adapters where servers take them: PEFT reads the same, megabytes less, and never old ones."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel

from gspo_lightning.core.randomness import Purpose
from gspo_lightning.core.types import Prompt, Rollout, SamplingParams
from gspo_lightning.policy.adapters.adapter_files import save_adapters
from gspo_lightning.policy.adapters.lora import LoRA, add_adapters
from gspo_lightning.policy.policy import Policy
from gspo_lightning.rollouts import Draws, VLLMServer
from tests.rollouts.toy_server import ToyServer

DRAWS = Draws.of(0, Purpose.TRAIN_SAMPLING, 2)
SAMPLING = SamplingParams(14, stop_token_ids=(1, 5, 9, 20))
FAST: dict[str, Any] = {"backoff_s": 0.01, "timeout_s": 20.0, "retries": 1}


@pytest.fixture
def toy() -> Iterator[ToyServer]:
    with ToyServer(lora=True) as server:
        yield server


@pytest.fixture
def adapted(policy: Policy) -> Policy:
    add_adapters(policy.model, LoRA(r=2, alpha=6), seed=0)
    shake(policy)
    return policy.eval()


def shake(policy: Policy) -> None:
    """An update of the adapters."""
    with torch.no_grad():
        for name, weight in policy.named_parameters():
            if "lora_B" in name:
                weight.add_(torch.randn_like(weight))


def gap(source: VLLMServer, policy: Policy, prompts: list[Prompt], version: int) -> float:
    """Nats between what the server said and what the policy says, over all tokens."""
    groups = source.generate(policy, prompts, group_size=3, sampling=SAMPLING, draws=DRAWS, version=version)
    return max(float((r.logprobs - logprobs(policy, r)).abs().max()) for g in groups for r in g)  # type: ignore[operator]


def logprobs(policy: Policy, rollout: Rollout) -> torch.Tensor:
    ids = torch.tensor([*rollout.prompt.token_ids, *rollout.token_ids.tolist()])
    with torch.no_grad():
        table = policy.model(ids[None]).logits[0].float().log_softmax(-1)
    return table[:-1].gather(1, ids[1:, None])[len(rollout.prompt.token_ids) - 1 :, 0]


@pytest.mark.thorough
def test_servers_get_adapters_alone_after_one_copy_of_the_frozen_weights(
    toy: ToyServer, adapted: Policy, prompts: list[Prompt]
) -> None:
    with closing(VLLMServer([toy.url], **FAST)) as source:
        for version in range(3):
            source.sync_weights(adapted, version)
            assert gap(source, adapted, prompts, version) < 1e-4
            shake(adapted)
            assert gap(source, adapted, prompts, version) > 1e-2  # what it has is a copy, of before
        trained = 4 * sum(p.numel() for n, p in adapted.named_parameters() if "lora_" in n)
        whole = 4 * sum(p.numel() for n, p in adapted.named_parameters() if "lora_" not in n)
        assert toy.loads == 1
        assert len(toy.received) == 1 + 3
        assert toy.received[0] == pytest.approx(whole, rel=0.2)
        assert max(toy.received[1:]) < trained + 20_000  # and names
        assert len(toy.adapters) == 1  # servers forget those of before
        root = source.weight_sync.folders.root
        assert root is not None
        assert sorted(p.name.split("-")[0] for p in root.iterdir()) == ["adapters", "weights"]


@pytest.mark.thorough
def test_a_server_that_forgot_gets_the_frozen_weights_again(
    toy: ToyServer, adapted: Policy, prompts: list[Prompt]
) -> None:
    with closing(VLLMServer([toy.url], **FAST)) as source:
        source.sync_weights(adapted, 0)
        toy.tag, toy.adapters = "default", {}
        toy._policy = None
        assert gap(source, adapted, prompts, 0) < 1e-4  # refused first, then brought up again
        assert toy.loads == 2
        assert len(toy.adapters) == 1
        source.sync_weights(adapted, 1)
        assert toy.loads == 2


def test_other_frozen_weights_are_sent_again(toy: ToyServer, adapted: Policy, prompts: list[Prompt]) -> None:
    with closing(VLLMServer([toy.url], **FAST)) as source:
        source.sync_weights(adapted, 0)
        with torch.no_grad():
            for weight in adapted.parameters():
                weight.mul_(1.1)
        source.sync_weights(adapted, 1)
        assert toy.loads == 2
        assert gap(source, adapted, prompts, 1) < 1e-4


@pytest.mark.thorough
@pytest.mark.parametrize("refusal", ["no such route", "too large"])
def test_a_server_without_adapters_gets_merged_weights_and_one_line_says_how_to_change_that(
    toy: ToyServer, adapted: Policy, prompts: list[Prompt], caplog: pytest.LogCaptureFixture, refusal: str
) -> None:
    if refusal == "no such route":
        toy.lora = False
    else:
        toy.fault = lambda path, body, reply: (
            (500, {"error": "LoRA rank 2 is greater than max_lora_rank 1."}) if "lora" in path else reply
        )
    with closing(VLLMServer([toy.url], **FAST)) as source, caplog.at_level(logging.WARNING):
        for version in range(2):
            source.sync_weights(adapted, version)
            assert gap(source, adapted, prompts, version) < 1e-4
            shake(adapted)
    (line,) = [r.getMessage() for r in caplog.records if "merged" in r.getMessage()]
    assert "enable_lora: true" in line
    assert "--enable-lora" in line
    assert refusal == "no such route" or "greater than max_lora_rank" in line
    assert toy.loads == 3  # the frozen weights once, for nothing


def test_peft_loads_the_adapters_that_servers_get(adapted: Policy, policy: Policy, tmp_path: Path) -> None:
    ids = torch.arange(3, 30)[None]
    wanted = adapted.model(ids).logits
    size = save_adapters(adapted.model, tmp_path / "a")
    assert size == 4 * sum(p.numel() for n, p in adapted.named_parameters() if "lora_" in n)
    found = PeftModel.from_pretrained(adapted.base_model(), tmp_path / "a")
    torch.testing.assert_close(found(ids).logits, wanted, rtol=0, atol=1e-6)
    assert (adapted.base_model()(ids).logits - wanted).abs().max() > 0.1


def test_started_servers_take_adapters_where_they_are_told_to(
    adapted: Policy, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = VLLMServer(options={"enable_lora": True})
    options, environment = source.weight_sync.options(adapted, source.servers.local.options)
    assert options == {"max_lora_rank": 8}  # the smallest that vLLM takes and that fits
    assert environment == {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True"}
    assert source.weight_sync.adapters
    assert not caplog.records
    plain = VLLMServer()
    assert plain.weight_sync.options(adapted, plain.servers.local.options) == ({}, {})
    assert not plain.weight_sync.adapters
    assert "enable_lora: true" in caplog.text
