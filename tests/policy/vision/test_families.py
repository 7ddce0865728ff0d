"""Vision-language families that are not known are refused by name, with the reason, before anything is sampled."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import Gemma3Config, SmolVLMConfig

from gspo_lightning.errors import UserError
from gspo_lightning.policy.loading import load_policy
from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.settings import ModelSettings
from gspo_lightning.policy.tiny import character_tokenizer
from gspo_lightning.policy.vision.families import FAMILIES, REASONS, refuse_unknown
from tests.policy.vision.test_exact import prompts_of


def test_an_unknown_family_is_refused_with_its_reason(tmp_path: Path) -> None:
    SmolVLMConfig().save_pretrained(tmp_path)
    character_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"(?s)'smolvlm', which cuts a picture into parts.*Qwen3-VL-MoE"):
        load_policy(ModelSettings(str(tmp_path)))
    with pytest.raises(UserError, match=r"'gemma3', which lets the tokens of a picture see those behind them"):
        refuse_unknown(Gemma3Config())
    assert not set(REASONS) & set(FAMILIES)


def test_a_text_model_names_the_families_that_read_pictures() -> None:
    policy: Policy = load_policy(ModelSettings("tiny-qwen3"))
    media = prompts_of(load_policy(ModelSettings("tiny-qwen3-vl")))[0].media
    with pytest.raises(UserError, match=r"(?s)reads text only.*Qwen2.5-VL, Qwen3-VL, Qwen3-VL-MoE"):
        policy.look([media], 8)
