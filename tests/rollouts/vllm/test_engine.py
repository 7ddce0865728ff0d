"""``VLLMEngine`` without vLLM: what is refused, and what would be handed over (tests/real_vllm has the rest)."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from gspo_lightning.core.errors import UserError
from gspo_lightning.policy.adapters.lora import LoRA, add_adapters
from gspo_lightning.policy.load.loading import load_policy
from gspo_lightning.policy.load.model_settings import ModelSettings
from gspo_lightning.policy.policy import Policy
from gspo_lightning.rollouts import VLLMEngine
from gspo_lightning.rollouts.serving.weights import in_checkpoint_format
from gspo_lightning.rollouts.vllm import engine
from tests.support import model_families


def test_without_vllm_it_says_so_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="vLLM is not installed") as error:
        VLLMEngine().open(64)
    assert error.value.field == "data.rollouts"
    assert "pip install 'vllm>=" in str(error.value.fix)


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_share_of_memory_outside_its_range_is_refused(share: float) -> None:
    with pytest.raises(UserError, match=r"gpu_memory_utilization.*must lie in \(0, 1\)"):
        VLLMEngine(gpu_memory_utilization=share)


def test_several_ranks_have_one_device_each(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "rank_and_world", lambda: (0, 2))
    with pytest.raises(UserError, match=r"wants 4 devices for the engine of each of 2 ranks(?s:.*)use VLLMServer"):
        VLLMEngine(options={"tensor_parallel_size": 4}).sync_weights(policy, 0)


@pytest.mark.parametrize("family", ["qwen3", "qwen3-moe", "llama", "adapters", "tiny-qwen3-vl", "tiny-qwen3-vl-moe"])
def test_weights_are_handed_over_as_a_checkpoint_has_them(family: str, tmp_path: Path) -> None:
    if family.startswith("tiny-"):
        policy = load_policy(ModelSettings(family))
    else:
        policy = model_families.build_policy("qwen3" if family == "adapters" else family, 0, 3.0)
    if family == "adapters":
        add_adapters(policy.model, LoRA(r=2), seed=0)
        for name, value in policy.model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(value)
    policy.save_pretrained(tmp_path)
    saved, given = load_file(tmp_path / "model.safetensors"), in_checkpoint_format(policy)
    assert given.keys() == saved.keys()
    assert all(torch.equal(given[name], saved[name]) for name in saved)
    assert not any(value.requires_grad for value in given.values())
