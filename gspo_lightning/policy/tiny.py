"""Tiny models and their character tokenizer, built from a config: no download, seconds to train on one CPU thread.

They are real transformers models with a real fast tokenizer, saved and loaded like any other; only their size is tiny.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
import transformers
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.randomness import initial_weights

CHARACTERS = "0123456789+-*/=;:#().,<>?!ABCabcxyz "
SPECIAL = ["<pad>", "<eos>", "<unk>"]
VISION = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
"""Vocabulary entries that follow the characters in a Qwen that reads pictures."""
GEMMA = ["<start_of_image>", "<end_of_image>", "<image_soft_token>"]
TILES = ["<fake_token_around_image>", "<global-img>", "<image>"]
TILES += [f"<row_{row}_col_{column}>" for row in (1, 2) for column in (1, 2)]

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
    "tiny-qwen3-vl": {
        "rope_parameters": {
            "rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 2, 2], "mrope_interleaved": True,
        },
    },
    "tiny-qwen3-vl-moe": {
        "num_experts": 16, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "decoder_sparse_step": 1,
        "rope_parameters": {
            "rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 2, 2], "mrope_interleaved": True,
        },
    },
    "tiny-qwen2.5-vl": {
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 2, 2]},
    },
    "tiny-gemma3": {"query_pre_attn_scalar": 16, "sliding_window": TINY_CONTEXT},
    "tiny-smolvlm": {"model_type": "llama"},
}  # fmt: skip
"""Name -> settings on top of the common ones.

``tiny-qwen3`` has about 87 thousand parameters. For models that read pictures, these are settings of their text models.
"""

_QWEN3_VISION = {
    "depth": 2, "hidden_size": 64, "intermediate_size": 128, "num_heads": 4, "patch_size": 8,
    "spatial_merge_size": 2, "temporal_patch_size": 2, "out_hidden_size": 64, "num_position_embeddings": 16,
    "deepstack_visual_indexes": [0], "initializer_range": 0.05,
}  # fmt: skip
_SIGLIP = {
    "num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "patch_size": 8,
    "image_size": 32,
}  # fmt: skip
_VISION: dict[str, dict[str, Any]] = {
    "tiny-qwen3-vl": _QWEN3_VISION,
    "tiny-qwen3-vl-moe": _QWEN3_VISION,
    "tiny-gemma3": {**_SIGLIP, "vision_use_head": False},  # as published; its pooling is never used
    "tiny-smolvlm": _SIGLIP,
    "tiny-qwen2.5-vl": {
        "depth": 2, "hidden_size": 64, "intermediate_size": 128, "num_heads": 4, "patch_size": 8,
        "spatial_merge_size": 2, "temporal_patch_size": 2, "out_hidden_size": 64, "window_size": 32,
        "fullatt_block_indexes": [1], "initializer_range": 0.05,
    },
}  # fmt: skip
"""Settings of the vision towers: one token stands for 16 x 16 pixels."""
_CLASSES = {
    "tiny-qwen3": ("Qwen3Config", "Qwen3ForCausalLM"),
    "tiny-qwen3-moe": ("Qwen3MoeConfig", "Qwen3MoeForCausalLM"),
    "tiny-qwen3-vl": ("Qwen3VLConfig", "Qwen3VLForConditionalGeneration"),
    "tiny-qwen3-vl-moe": ("Qwen3VLMoeConfig", "Qwen3VLMoeForConditionalGeneration"),
    "tiny-qwen2.5-vl": ("Qwen2_5_VLConfig", "Qwen2_5_VLForConditionalGeneration"),
    "tiny-gemma3": ("Gemma3Config", "Gemma3ForConditionalGeneration"),
    "tiny-smolvlm": ("SmolVLMConfig", "SmolVLMForConditionalGeneration"),
}
"""Class names in transformers, which imports a family on demand."""


def character_tokenizer(name: str = "tiny-qwen3") -> PreTrainedTokenizerFast:
    """Return a tokenizer with one token per character, plus ``<pad>`` (0), ``<eos>`` (1) and ``<unk>`` (2).

    For a model that reads pictures it also knows the placeholders (and line breaks if the family puts them beside
    pictures). It has no chat template.

    >>> tokenizer = character_tokenizer()
    >>> tokenizer.decode(tokenizer("7+5:").input_ids)
    '7+5:'
    """
    vocabulary = {token: i for i, token in enumerate(SPECIAL + list(_characters(name)))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    options: dict[str, Any] = {"additional_special_tokens": _placeholders(name)} if name in _VISION else {}
    if name == "tiny-gemma3":  # its processor asks the tokenizer for them by these names
        names = ("boi_token", "eoi_token", "image_token")
        options["extra_special_tokens"] = dict(zip(names, GEMMA, strict=True))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        clean_up_tokenization_spaces=False,
        model_max_length=TINY_CONTEXT,
        **options,
    )


def tiny_config(name: str, overrides: Mapping[str, Any] | None = None) -> PretrainedConfig:
    """Return the config of a tiny model.

    Raises:
        UserError: an override is not a field of the model's config (for one that reads pictures, its text model's).
    """
    size = len(SPECIAL) + len(_characters(name))
    settings = copy.deepcopy({**_COMMON, **TINY_MODELS[name]}) | {"vocab_size": size}  # configs are changed in place
    config_class: Any = getattr(transformers, _CLASSES[name][0])
    text_class = config_class.sub_configs["text_config"] if name in _VISION else config_class
    text_class = transformers.LlamaConfig if name == "tiny-smolvlm" else text_class
    for key, value in (overrides or {}).items():
        if not hasattr(text_class(), key):
            raise UserError("model.config_overrides", f"{key!r} is not a field of {text_class.__name__}")
        settings[key] = value
    if name not in _VISION:
        return config_class(**settings)
    tied = settings.pop("tie_word_embeddings")
    placeholders = _placeholders(name)
    ids = {token: size + i for i, token in enumerate(placeholders)}
    text = {**settings, "vocab_size": size + len(placeholders)}
    more: dict[str, Any] = {
        "text_config": text,
        "vision_config": copy.deepcopy(_VISION[name]),
        "tie_word_embeddings": tied,
    }
    if name == "tiny-gemma3":
        return config_class(
            **more, mm_tokens_per_image=4, boi_token_index=ids[GEMMA[0]], eoi_token_index=ids[GEMMA[1]],
            image_token_index=ids[GEMMA[2]],
        )  # fmt: skip
    if name == "tiny-smolvlm":
        return config_class(**more, image_token_id=ids["<image>"], scale_factor=2, pad_token_id=0)
    more["vision_config"]["out_hidden_size"] = settings["hidden_size"]
    start, end, image, video = ids.values()
    return config_class(
        **more, vision_start_token_id=start, vision_end_token_id=end, image_token_id=image, video_token_id=video
    )


def _characters(name: str) -> str:
    return CHARACTERS + "\n" if _placeholders(name) in (GEMMA, TILES) else CHARACTERS


def _placeholders(name: str) -> list[str]:
    return {"tiny-gemma3": GEMMA, "tiny-smolvlm": TILES}.get(name, VISION)


def build_tiny_model(
    name: str, seed: int, dtype: torch.dtype = torch.float32, overrides: Mapping[str, Any] | None = None
) -> PreTrainedModel:
    """Build a freshly initialised tiny model; a seed always gives the same weights.

    Raises:
        UserError: an override is not a field of the model's config.
    """
    config = tiny_config(name, overrides)
    with initial_weights(seed) as device:
        model: PreTrainedModel = getattr(transformers, _CLASSES[name][1])(config)
        for weight_name, weight in model.named_parameters():
            if weight_name.endswith("mm_input_projection_weight"):  # Gemma 3's begins at 0, which shows no picture
                torch.nn.init.normal_(weight, std=_COMMON["initializer_range"])
    return model.to(device, dtype)
