"""GSPOTrainer on a model with adapters: what KL is measured to, before and after a checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from peft import LoraConfig, inject_adapter_in_model
from transformers import PreTrainedModel

from gspo_lightning import GSPOConfig, GSPOTrainer
from gspo_lightning.core.errors import UserError
from gspo_lightning.objectives import GSPO
from gspo_lightning.policy.adapters.lora import LoRA, add_adapters
from gspo_lightning.policy.tiny import build_tiny_model, character_tokenizer

CONFIG = GSPOConfig(learning_rate=1e-2, group_size=4, max_response_tokens=8)
K1 = "kl/policy_reference_k1"


def model_of(scale: float) -> PreTrainedModel:
    """With adapters that do nothing at scale 0."""
    model = build_tiny_model("tiny-qwen3", seed=0)
    add_adapters(model, LoRA(r=4), seed=0)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if ".lora_B" in name:
                weight.add_(scale * torch.arange(weight.numel()).view_as(weight).cos())
    return model


def trainer_of(scale: float) -> GSPOTrainer:
    return GSPOTrainer(model_of(scale), character_tokenizer(), CONFIG, GSPO(kl_coef=0.1))


def step(trainer: GSPOTrainer) -> dict[str, float]:
    return trainer.train_step(["1+1:", "2*3:"], lambda query, response: float(len(response) % 3))


@pytest.mark.parametrize("scale", [0.0, 0.1], ids=["new adapters", "trained before"])
def test_kl_is_measured_to_where_training_starts(scale: float) -> None:
    trainer = trainer_of(scale)
    first, second = step(trainer), step(trainer)
    assert first[K1] == 0.0
    assert second[K1] != 0.0
    assert trainer.reference is not None
    assert (trainer.reference.policy is trainer.policy) == (scale == 0.0)  # without a copy of anything


@pytest.mark.thorough("0.0-new adapters", "0.0-trained before", "0.1-trained before")
@pytest.mark.parametrize("scale", [0.0, 0.1], ids=["new adapters", "trained before"])
@pytest.mark.parametrize("resumed_from", [0.0, 0.1])
def test_a_resumed_trainer_keeps_the_reference(scale: float, resumed_from: float, tmp_path: Path) -> None:
    """Whatever adapters the model of the new process has."""
    trainer = trainer_of(scale)
    step(trainer)
    torch.save(trainer.state_dict(), tmp_path / "state.pt")
    expected = step(trainer)
    resumed = trainer_of(resumed_from)
    resumed.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    found = step(resumed)
    assert {k: v for k, v in found.items() if "time" not in k and "throughput" not in k} == {
        k: v for k, v in expected.items() if "time" not in k and "throughput" not in k
    }
    assert found[K1] != 0.0


def test_adapters_of_experts_are_refused() -> None:
    """A model that PEFT itself has wrapped: its all-linear means experts and routers, too."""
    model = build_tiny_model("tiny-qwen3-moe", seed=0)
    inject_adapter_in_model(LoraConfig(r=2, target_modules="all-linear"), model)
    with pytest.raises(UserError, match=r"model: has adapters of .*mlp\.(experts|gate)(.|\n)*target_modules"):
        GSPOTrainer(model, character_tokenizer(), CONFIG)
