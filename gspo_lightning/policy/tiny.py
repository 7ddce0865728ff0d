"""Tiny models and their character tokenizer, built from a config: no download, seconds to train on one CPU thread.

They are real transformers models with a real fast tokenizer, saved and loaded like any other; only their size is a toy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from gspo_lightning.errors import UserError
from gspo_lightning.randomness import Purpose, stream

__all__ = ["TINY_CONTEXT", "TINY_MODELS", "build_tiny_model", "character_tokenizer", "tiny_config"]

CHARACTERS = "0123456789+-*/=;:#().,<>?!ABCabcxyz "
SPECIAL = ["<pad>", "<eos>", "<unk>"]

TINY_CONTEXT = 512
"""Positions of every tiny model."""

_COMMON: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "intermediate_size": 128,
    "max_position_embeddings": TINY_CONTEXT,
    "initializer_range": 0.05,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "bos_token_id": None,
}

TINY_MODELS: dict[str, dict[str, Any]] = {
    "tiny-qwen3": {},
    "tiny-qwen3-moe": {
        "num_experts": 16,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
    },
}
"""Name -> settings on top of the common ones. ``tiny-qwen3`` has about 87 thousand parameters."""


def character_tokenizer() -> PreTrainedTokenizerFast:
    """One token per character of a small alphabet, plus ``<pad>`` (0), ``<eos>`` (1) and ``<unk>`` (2).

    >>> tokenizer = character_tokenizer()
    >>> tokenizer.decode(tokenizer("7+5:").input_ids)
    '7+5:'
    """
    vocabulary = {token: i for i, token in enumerate(SPECIAL + list(CHARACTERS))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        clean_up_tokenization_spaces=False,
        model_max_length=TINY_CONTEXT,
    )


def tiny_config(name: str, overrides: Mapping[str, Any] | None = None) -> Qwen3Config | Qwen3MoeConfig:
    """The config of a tiny model.

    Raises:
        UserError: an override that is no field of the model's config.
    """
    settings = {**_COMMON, **TINY_MODELS[name], "vocab_size": len(SPECIAL) + len(CHARACTERS)}
    config_class = Qwen3MoeConfig if name == "tiny-qwen3-moe" else Qwen3Config
    for key, value in (overrides or {}).items():
        if not hasattr(config_class(), key):
            raise UserError("model.config_overrides", f"{key!r} is not a field of {config_class.__name__}")
        settings[key] = value
    return config_class(**settings)


def build_tiny_model(
    name: str, seed: int, dtype: torch.dtype = torch.float32, overrides: Mapping[str, Any] | None = None
) -> PreTrainedModel:
    """A freshly initialised tiny model; the same weights for the same seed, whatever was drawn before.

    Raises:
        UserError: an override that is no field of the model's config.
    """
    config = tiny_config(name, overrides)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream(seed, Purpose.INITIALISATION) % (1 << 63))
        model: PreTrainedModel
        model = Qwen3MoeForCausalLM(config) if isinstance(config, Qwen3MoeConfig) else Qwen3ForCausalLM(config)
    return model.to(dtype)
