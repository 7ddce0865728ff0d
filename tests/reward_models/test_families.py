"""Reward models of families that read pictures: they judge texts, so the tower is left as it is."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gspo_lightning.cli import main
from gspo_lightning.policy.lora import LoRA
from gspo_lightning.policy.settings import ModelSettings
from gspo_lightning.reward_models.model import load_reward_model
from tests.reward_models.runs import command, planted, write


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
