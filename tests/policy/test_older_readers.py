"""Files of models hold what transformers 4 reads, and transformers 5 reads the same from them as before."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig, AutoTokenizer
from transformers.models.phi3.modeling_phi3 import Phi3RotaryEmbedding

from gspo_lightning.policy.load.loading import load_policy
from gspo_lightning.policy.load.model_settings import ModelSettings
from gspo_lightning.policy.older_readers import add_older_names

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
FACTORS = {"short_factor": [1.0, 1.5], "long_factor": [2.0, 3.0]}
LONG = {"rope_type": "longrope", "partial_rotary_factor": 0.5, **FACTORS}
LINEAR = {"rope_type": "linear", "factor": 8.0}


@pytest.mark.parametrize(
    ("kind", "rope", "older"),
    [
        ("qwen3", {"rope_type": "default", "rope_theta": 5e5}, {"rope_theta": 5e5}),
        ("llama", {"rope_theta": 1e4, **YARN}, {"rope_theta": 1e4, "rope_scaling": YARN}),
        (
            "phi3",
            {"rope_theta": 1e4, **LONG},
            {"rope_theta": 1e4, "partial_rotary_factor": 0.5, "rope_scaling": {"type": "longrope", **FACTORS}},
        ),
        (
            "gemma3_text",
            {
                "full_attention": {"rope_theta": 1e6, **LINEAR},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
            {"rope_theta": 1e6, "rope_scaling": LINEAR, "rope_local_base_freq": 1e4},
        ),
    ],
)
def test_rotations_are_written_twice(tmp_path: Path, kind: str, rope: dict[str, Any], older: dict[str, Any]) -> None:
    """The values of version 4 are those that transformers 4.57 was seen to compute the same logits with."""
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "head_dim": 8, "max_position_embeddings": 256}
    positions = {"original_max_position_embeddings": 64} if kind == "phi3" else {}
    config = AutoConfig.for_model(kind, rope_parameters=rope, pad_token_id=0, **sizes, **positions)
    config.save_pretrained(tmp_path)
    before = AutoConfig.from_pretrained(tmp_path).rope_parameters
    add_older_names(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    assert {name: written[name] for name in older} == older
    after = AutoConfig.from_pretrained(tmp_path).rope_parameters
    computed = {"factor", "attention_factor", "original_max_position_embeddings"} if kind == "phi3" else set()
    for name in before.keys() - computed:
        expected = before[name]
        got = after[name]
        assert got == expected or {n: v for n, v in got.items() if n != "type"} == expected, name


@pytest.mark.parametrize(
    ("extra", "written"),
    [
        ({"factor": 4.0, "attention_factor": 1.154700538}, True),  # sqrt(1 + ln 4 / ln 64) = sqrt(4 / 3)
        ({"factor": 4.0, "attention_factor": 1.5}, False),
        ({"factor": 4.0}, True),
        ({"factor": 8.0}, False),  # sqrt(1 + ln 8 / ln 64) = sqrt(3 / 2)
    ],
)
def test_a_phi3_keeps_how_its_attention_is_scaled(tmp_path: Path, extra: dict[str, float], written: bool) -> None:
    """transformers 5 reads what is written for version 4 in place of its own, and then computes the factor."""
    config = AutoConfig.for_model(
        "phi3", rope_parameters={"rope_theta": 1e4, **LONG, **extra}, pad_token_id=0, hidden_size=32,
        num_attention_heads=4, max_position_embeddings=256, original_max_position_embeddings=64,
    )  # fmt: skip
    config.save_pretrained(tmp_path)
    add_older_names(tmp_path)
    content = json.loads((tmp_path / "config.json").read_text())
    assert ("rope_scaling" in content) is written
    assert content["rope_theta"] == 1e4
    read = AutoConfig.from_pretrained(tmp_path)
    scales = [Phi3RotaryEmbedding(either).attention_scaling for either in (config, read)]
    assert scales[0] == pytest.approx(scales[1], rel=1e-6)


def test_a_saved_tokenizer_names_a_class_of_both_versions(tmp_path: Path) -> None:
    policy = load_policy(ModelSettings("tiny-qwen3"))
    policy.save_pretrained(tmp_path)
    written = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert written["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert "extra_special_tokens" not in written
    text = "3+4=<|endoftext|>"
    assert AutoTokenizer.from_pretrained(tmp_path)(text)["input_ids"] == policy.tokenizer(text)["input_ids"]
