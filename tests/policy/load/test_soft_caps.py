"""Scores of attention are capped where a model's config says so."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import Gemma2ForSequenceClassification

from gspo_lightning.policy.load.loading import load_policy
from gspo_lightning.policy.load.model_settings import ModelSettings
from gspo_lightning.policy.load.soft_caps import attention_options
from gspo_lightning.rewards.classifier import SequenceClassificationReward
from gspo_lightning.training.reward_models.model import load_reward_model
from tests.support.model_families import build_policy


def test_soft_caps_of_gemma_2_are_computed(tmp_path: Path) -> None:
    """transformers 5.19 starts Gemma 2 with sdpa, which ignores them and says nothing."""
    made = build_policy("gemma2")
    with torch.no_grad():
        for layer in made.backbone.layers:
            layer.self_attn.q_proj.weight.mul_(100)  # scores far above the cap of 50
    made.save_pretrained(tmp_path)
    ids = torch.arange(3, 15)[None]
    with torch.no_grad():
        loaded = load_policy(ModelSettings(str(tmp_path))).model(input_ids=ids).logits
        made.model.set_attn_implementation("eager")
        capped = made.model(input_ids=ids).logits
        for layer in made.backbone.layers:
            layer.self_attn.attn_logit_softcapping = None
        uncapped = made.model(input_ids=ids).logits
    torch.testing.assert_close(loaded, capped)
    assert float((uncapped - capped).abs().max()) > 0.01


def test_soft_caps_of_reward_models_are_computed(tmp_path: Path) -> None:
    made = build_policy("gemma2")
    made.save_pretrained(tmp_path)
    config = made.model.config
    config.num_labels = 1
    Gemma2ForSequenceClassification(config).save_pretrained(tmp_path)
    trained = load_reward_model(ModelSettings(str(tmp_path)))
    scoring, _ = SequenceClassificationReward(str(tmp_path))._from_pretrained()
    assert {model.config._attn_implementation for model in (trained, scoring)} == {"eager"}
    assert attention_options(config, "sdpa") == {"attn_implementation": "sdpa"}  # a user's word counts
    config.attn_logit_softcapping = None
    assert attention_options(config) == {}
