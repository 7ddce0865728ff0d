"""Models of a plan: built-in configs of well-known ones, so that it needs no network, and models without data."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    PretrainedConfig,
    PreTrainedModel,
)

from gspo_lightning.core.errors import UserError
from gspo_lightning.policy.adapters.freezing import freeze
from gspo_lightning.policy.adapters.lora import LoRA, add_adapters
from gspo_lightning.policy.load.loading import load_config
from gspo_lightning.policy.load.model_settings import ModelSettings
from gspo_lightning.policy.tiny import TINY_MODELS, tiny_config
from gspo_lightning.policy.vision.families import FAMILIES, reads_pictures, tower_of
from gspo_lightning.rollouts.serving.streamed import BUCKET

_SMALL = {"tie_word_embeddings": True}
_QWEN3 = {"head_dim": 128}
_LONG = {"max_position_embeddings": 131072}
_EXPERTS = {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "decoder_sparse_step": 1}
_TOWER = {
    "depth": 24, "hidden_size": 1024, "intermediate_size": 4096, "num_heads": 16, "patch_size": 16,
    "spatial_merge_size": 2, "temporal_patch_size": 2, "num_position_embeddings": 2304,
    "deepstack_visual_indexes": [5, 11, 17],
}  # fmt: skip
PICTURE_PIXELS = {"qwen3_vl": 4096 * 4096, "qwen3_vl_moe": 4096 * 4096, "qwen2_5_vl": 3584 * 3584}
"""Model type -> pixels above which its published processor scales a picture down."""
_SAME_SIZES = ("-Base", "-Instruct", "-Thinking-2507", "-Instruct-2507")


def _known(
    family: str, hidden: int, layers: int, heads: int, kv_heads: int, intermediate: int, vocabulary: int, **more: Any
) -> dict[str, Any]:
    sizes = {
        "model_type": family, "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "intermediate_size": intermediate, "vocab_size": vocabulary,
    }  # fmt: skip
    return sizes | {"tie_word_embeddings": False, "max_position_embeddings": 40960} | more


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


def config_of(settings: ModelSettings) -> PretrainedConfig:
    """Return the config of a model; no weights are read.

    Raises:
        UserError: the model is not built in and its config cannot be read (a hub id without a network, for example).
    """
    name = settings.name_or_path
    if name in TINY_MODELS:
        return tiny_config(name, settings.overrides)
    if not Path(name).is_dir():
        for known_name in (name, *_without_suffix(name)):
            if known_name in KNOWN_MODELS:
                fields = dict(KNOWN_MODELS[known_name])
                model_type = fields.pop("model_type")
                config: PretrainedConfig = AutoConfig.for_model(model_type, **(fields | settings.overrides))
                return config
    try:
        return load_config(settings)
    except UserError as error:
        if Path(name).is_file():  # a GGUF file: its refusal says what helps
            raise
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
    if text.get("layer_types"):
        text["layer_types"] = text["layer_types"][:layers]
    fields.pop("_attn_implementation_autoset", None)
    shorter: PretrainedConfig = type(config).from_dict(fields)
    return shorter


def skeleton(
    config: PretrainedConfig, lora: LoRA | None = None, frozen: Sequence[str] | None = None
) -> PreTrainedModel:
    """Build a model on the meta device, with adapters and frozen parameters (``frozen``: ``model.freeze``)."""
    kind = AutoModelForImageTextToText if reads_pictures(config) else AutoModelForCausalLM
    with torch.device("meta"):
        model: PreTrainedModel = kind.from_config(config, trust_remote_code=False)
        if lora is not None:
            add_adapters(model, lora, seed=0, frozen=frozen)
        freeze(model, frozen)
    return model.train()


def shadow(model: PreTrainedModel, dtype: torch.dtype, mode: FakeTensorMode) -> PreTrainedModel:
    """Move a model to fake CPU tensors: operations check shapes and make no data. Adapters stay float32."""
    fakes: dict[int, nn.Parameter] = {}
    with mode:
        for path, module in model.named_modules():
            for name, weight in list(module._parameters.items()):
                if weight is None:
                    continue
                if id(weight) not in fakes:  # tied weights stay tied
                    kind = weight.dtype if ".lora_" in path else dtype
                    fakes[id(weight)] = nn.Parameter(torch.empty(weight.shape, dtype=kind), weight.requires_grad)
                module._parameters[name] = fakes[id(weight)]
            for name, buffer in list(module._buffers.items()):
                if buffer is not None:
                    module._buffers[name] = torch.empty(buffer.shape, dtype=buffer.dtype)
    return model


@dataclass(frozen=True)
class Counts:
    """Parameter counts of a model and of the parts that are gathered or quantised at a time."""

    total: int
    trainable: int
    small: int
    """Trainable parameters in tensors of fewer than 4,096 elements, whose 8-bit optimizer state is not 8-bit."""
    largest_layer: int
    outside: int
    """Parameters outside of decoder layers: embeddings, head and final norm."""
    quantisable: int
    """Frozen weights of linear layers other than the head, to which 4-bit storage applies."""
    active: int
    """Parameters applied to a token: without the input embedding, and only the experts a token is routed to."""
    largest: int
    """Parameters of the largest single trainable tensor."""
    products: int
    """Parameters applied to tokens, with all experts: autocast casts them."""
    vision: int = 0
    """Parameters of the vision tower, which processes only pictures."""
    experts: int = 0
    """Parameters of all experts of a mixture."""
    experts_of_layer: int = 0
    """Parameters of the experts of the layer with most of them."""
    expert_layers: int = 0
    """Layers that have experts."""


def gathered_layer(counts: Counts, expert_parallel: bool) -> int:
    """Return the parameters of the largest layer that are gathered to compute it."""
    return counts.largest_layer - (counts.experts_of_layer if expert_parallel else 0)


def bucket(counts: Counts, compute_bytes: int) -> int:
    """Return the bytes of what is sent to servers at a time, at most: a layer's experts are two or three tensors."""
    return max(BUCKET, max(counts.largest, counts.outside, counts.experts_of_layer) * compute_bytes)


def count(model: PreTrainedModel) -> Counts:
    """Count the parameters of a model, which may be on the meta device."""
    config = model.config.get_text_config()
    weights = dict(model.named_parameters())  # tied weights once
    family = FAMILIES.get(model.config.model_type)
    layers = (getattr(model.base_model, family.text) if family else model.base_model).layers
    per_layer = [sum(p.numel() for p in layer.parameters()) for layer in layers]
    total = sum(p.numel() for p in weights.values())
    trained = [p.numel() for p in weights.values() if p.requires_grad]
    linears = [module for layer in layers for module in layer.modules() if isinstance(module, nn.Linear)]
    frozen = sum(linear.weight.numel() for linear in linears if not linear.weight.requires_grad)
    per_expert_layer = [size for size in map(_in_experts, layers) if size]
    experts = sum(per_expert_layer)
    share = getattr(config, "num_experts_per_tok", 0) / max(getattr(config, "num_experts", 1) or 1, 1)
    head = model.get_output_embeddings().weight
    embedding = model.get_input_embeddings().weight
    vision = sum(p.numel() for part in tower_of(model).values() for p in part.parameters())
    applied = total - vision - (0 if head is embedding else embedding.numel())
    return Counts(
        total=total,
        trainable=sum(trained),
        small=sum(size for size in trained if size < 4096),
        largest_layer=max(per_layer),
        outside=total - sum(per_layer),
        quantisable=frozen,
        active=applied - round(experts * (1 - share)),
        largest=max(trained, default=0),
        products=applied,
        vision=vision,
        experts=experts,
        experts_of_layer=max(per_expert_layer, default=0),
        expert_layers=len(per_expert_layer),
    )


def _in_experts(layer: nn.Module) -> int:
    return sum(p.numel() for name, p in layer.named_parameters() if ".experts." in name)


def counts_of(settings: ModelSettings) -> Counts:
    """Return the parameter counts of a model, cached."""
    key = repr(settings)
    if key not in _counts:
        _counts[key] = count(skeleton(config_of(settings), settings.lora, settings.freeze))
    return _counts[key]


def backbone_counts(settings: ModelSettings) -> Counts:
    """Return the parameter counts of a model without its output head, as a critic has it."""
    counts = counts_of(settings)
    config = config_of(settings)  # a vision model's text config may not say what is tied
    text = config.get_text_config()
    head = int(text.vocab_size) * int(text.hidden_size)
    removed = 0 if config.tie_word_embeddings else head  # a tied head is the embedding, which stays
    return dataclasses.replace(
        counts,
        total=counts.total - removed,
        trainable=counts.trainable - (removed if settings.lora is None else 0),
        outside=max(0, counts.outside - removed),
        active=counts.active - head,
    )


_counts: dict[str, Counts] = {}
