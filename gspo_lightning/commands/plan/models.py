"""Built-in configs of well-known models, so that a plan needs no network; other models' configs are loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import AutoConfig, PretrainedConfig

from gspo_lightning.errors import UserError
from gspo_lightning.policy.loading import load_config
from gspo_lightning.policy.settings import ModelSettings
from gspo_lightning.policy.tiny import TINY_MODELS, tiny_config
from gspo_lightning.policy.vision.families import reads_pictures

__all__ = ["KNOWN_MODELS", "PICTURE_PIXELS", "config_of", "with_layers"]


def _known(
    family: str, hidden: int, layers: int, heads: int, kv_heads: int, intermediate: int, vocabulary: int, **more: Any
) -> dict[str, Any]:
    sizes = {
        "model_type": family, "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "intermediate_size": intermediate, "vocab_size": vocabulary,
    }  # fmt: skip
    return sizes | {"tie_word_embeddings": False, "max_position_embeddings": 40960} | more


_SMALL = {"tie_word_embeddings": True}
_QWEN3 = {"head_dim": 128}
_LONG = {"max_position_embeddings": 131072}
_EXPERTS = {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "decoder_sparse_step": 1}

_TOWER = {
    "depth": 24, "hidden_size": 1024, "intermediate_size": 4096, "num_heads": 16, "patch_size": 16,
    "spatial_merge_size": 2, "temporal_patch_size": 2, "num_position_embeddings": 2304,
    "deepstack_visual_indexes": [5, 11, 17],
}  # fmt: skip


def _seeing(hidden: int, layers: int, heads: int, kv_heads: int, intermediate: int) -> dict[str, Any]:
    """Return the config of a Qwen3-VL of up to 4B: its text model, and the vision tower that these sizes share."""
    text = _known("qwen3_vl_text", hidden, layers, heads, kv_heads, intermediate, 151936, **_QWEN3, **_SMALL)
    text |= {
        "max_position_embeddings": 262144,
        "rope_parameters": {
            "rope_type": "default", "rope_theta": 5000000.0, "mrope_section": [24, 20, 20], "mrope_interleaved": True,
        },
    }  # fmt: skip
    vision = {**_TOWER, "out_hidden_size": hidden}
    return {"model_type": "qwen3_vl", "text_config": text, "vision_config": vision, "tie_word_embeddings": True}


PICTURE_PIXELS = {"qwen3_vl": 4096 * 4096, "qwen3_vl_moe": 4096 * 4096, "qwen2_5_vl": 3584 * 3584}
"""Model type -> pixels above which its published processor scales a picture down."""

KNOWN_MODELS: dict[str, dict[str, Any]] = {
    "Qwen/Qwen3-0.6B": _known("qwen3", 1024, 28, 16, 8, 3072, 151936, **_QWEN3, **_SMALL),
    "Qwen/Qwen3-1.7B": _known("qwen3", 2048, 28, 16, 8, 6144, 151936, **_QWEN3, **_SMALL),
    "Qwen/Qwen3-4B": _known("qwen3", 2560, 36, 32, 8, 9728, 151936, **_QWEN3, **_SMALL),
    "Qwen/Qwen3-8B": _known("qwen3", 4096, 36, 32, 8, 12288, 151936, **_QWEN3),
    "Qwen/Qwen3-14B": _known("qwen3", 5120, 40, 40, 8, 17408, 151936, **_QWEN3),
    "Qwen/Qwen3-32B": _known("qwen3", 5120, 64, 64, 8, 25600, 151936, **_QWEN3),
    "Qwen/Qwen3-30B-A3B": _known("qwen3_moe", 2048, 48, 32, 4, 6144, 151936, **_QWEN3, **_EXPERTS),
    "Qwen/Qwen2.5-0.5B": _known("qwen2", 896, 24, 14, 2, 4864, 151936, **_SMALL, max_position_embeddings=32768),
    "Qwen/Qwen2.5-1.5B": _known("qwen2", 1536, 28, 12, 2, 8960, 151936, **_SMALL, **_LONG),
    "Qwen/Qwen2.5-3B": _known("qwen2", 2048, 36, 16, 2, 11008, 151936, **_SMALL, max_position_embeddings=32768),
    "Qwen/Qwen2.5-7B": _known("qwen2", 3584, 28, 28, 4, 18944, 152064, **_LONG),
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": _known("qwen2", 1536, 28, 12, 2, 8960, 151936, **_LONG),
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B": _known("qwen2", 3584, 28, 28, 4, 18944, 152064, **_LONG),
    "Qwen/Qwen3-VL-2B-Instruct": _seeing(2048, 28, 16, 8, 6144),
    "Qwen/Qwen3-VL-4B-Instruct": _seeing(2560, 36, 32, 8, 9728),
    "meta-llama/Llama-3.2-1B": _known("llama", 2048, 16, 32, 8, 8192, 128256, **_SMALL, **_LONG, head_dim=64),
    "meta-llama/Llama-3.1-8B": _known("llama", 4096, 32, 32, 8, 14336, 128256, **_LONG),
}
"""Hub id -> config fields that determine sizes, from the model cards and configs on the hub."""

_SAME_SIZES = ("-Base", "-Instruct", "-Thinking-2507", "-Instruct-2507")


def config_of(settings: ModelSettings) -> PretrainedConfig:
    """Return the config of a model; no weights are read.

    Raises:
        UserError: the model is not built in and its config cannot be read (a hub id without a network, for example).
    """
    name = settings.name_or_path
    if name in TINY_MODELS:
        return tiny_config(name, settings.config_overrides)
    if not Path(name).is_dir():
        known = next((KNOWN_MODELS[n] for n in (name, *_without_suffix(name)) if n in KNOWN_MODELS), None)
        if known is not None:
            fields = {k: v for k, v in known.items() if k != "model_type"} | settings.config_overrides
            config: PretrainedConfig = AutoConfig.for_model(known["model_type"], **fields)
            return config
    try:
        return load_config(settings)
    except UserError as error:
        raise UserError(
            error.field,
            error.problem,
            fix=f"give the folder of its config.json, or plan with one of {', '.join(KNOWN_MODELS)}",
        ) from error


def _without_suffix(name: str) -> list[str]:
    return [name.removesuffix(end) for end in _SAME_SIZES if name.endswith(end)]


def with_layers(config: PretrainedConfig, layers: int) -> PretrainedConfig:
    """Return the config with fewer decoder layers."""
    fields = config.to_dict()
    text = fields["text_config"] if reads_pictures(config) else fields
    text["num_hidden_layers"] = layers
    if kinds := text.get("layer_types"):
        text["layer_types"] = kinds[:layers]
    fields.pop("_attn_implementation_autoset", None)
    shorter: PretrainedConfig = type(config).from_dict(fields)
    return shorter
