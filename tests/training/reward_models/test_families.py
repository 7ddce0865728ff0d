"""Reward models of families that need care: those that read pictures, and those that draw random numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification, BertConfig, MixtralConfig, PhimoeConfig

from gspo_lightning.cli import main
from gspo_lightning.policy.adapters.lora import LoRA
from gspo_lightning.policy.load.model_settings import ModelSettings
from gspo_lightning.policy.tiny import character_tokenizer
from gspo_lightning.training.reward_models.model import load_reward_model
from tests.training.reward_models.runs import command, fit_reward, planted, weights, write


@pytest.mark.parametrize("lora", [None, LoRA(r=2)], ids=["weights", "adapters"])
def test_nothing_is_trained_that_texts_never_go_through(lora: LoRA | None) -> None:
    model = load_reward_model(ModelSettings("tiny-gemma3", lora=lora))
    loss = model(input_ids=torch.arange(3, 11)[None]).logits.sum()
    loss.backward()
    trained = {n for n, p in model.named_parameters() if p.requires_grad}
    assert trained == {n for n, p in model.named_parameters() if p.grad is not None}
    assert any(n.startswith("model.language_model.") for n in trained)


@pytest.mark.parametrize("name", ["tiny-qwen3-vl", "tiny-smolvlm"])
def test_a_family_without_a_classifier_is_refused(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs = write(tmp_path / "pairs.jsonl", planted(20))
    assert main(command(tmp_path, pairs, f"--model.name_or_path={name}")) == 2
    said = capsys.readouterr().err
    assert f"error: model.name_or_path: {name!r} cannot be loaded as a reward model" in said
    assert "Traceback" not in said


SIZES: dict[str, Any] = {
    "vocab_size": len(character_tokenizer()), "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 2, "max_position_embeddings": 64, "eos_token_id": 1, "pad_token_id": 0, "num_labels": 1,
}  # fmt: skip
RANDOM = {
    "router jitter": MixtralConfig(**SIZES, num_key_value_heads=1, num_local_experts=4, router_jitter_noise=0.3),
    "experts drawn in train mode": PhimoeConfig(**SIZES, num_key_value_heads=1, num_local_experts=4),
    "dropout": BertConfig(**SIZES),
}


@pytest.mark.thorough
@pytest.mark.parametrize("kind", RANDOM)
def test_dropout_and_router_jitter_are_off_in_reward_model_training(kind: str, tmp_path: Path) -> None:
    """Otherwise another cut would draw other numbers; the exported config has the rates that were loaded."""
    torch.manual_seed(0)
    folder = tmp_path / "start"
    AutoModelForSequenceClassification.from_config(RANDOM[kind]).save_pretrained(folder)
    character_tokenizer().save_pretrained(folder)
    train, val = (write(tmp_path / f"{n}.jsonl", planted(23, n)) for n in (0, 1))
    options = [f"--data.val={val}", f"--model.name_or_path={folder}", "--model.optimizer=torch.optim.SGD",
               "--model.optimizer.lr=0.1", "--data.batch_size=10", "--model.gradient_checkpointing=true"]  # fmt: skip
    whole, cut = (
        fit_reward(tmp_path / str(size), train, *options, f"--data.micro_batch_size={size}") for size in (10, 3)
    )
    one, other = weights(whole), weights(cut)
    assert max(float((one[name] - other[name]).abs().max()) for name in one) < 1e-5
    before, after = (json.loads((f / "config.json").read_text()) for f in (folder, whole / "model"))
    rates = [name for name in before if "dropout" in name or "jitter" in name]
    assert {name: before[name] for name in rates} == {name: after[name] for name in rates}
    assert any(before[name] for name in rates)
