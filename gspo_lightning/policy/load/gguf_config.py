"""Build the config that the metadata of a GGUF file describes; what is not understood is refused, never dropped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from transformers import AutoConfig, PretrainedConfig

from gspo_lightning.core.errors import UserError
from gspo_lightning.policy.load.gguf_tokenizer import FIELD, ORIGINAL

_DENSE = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
}
_HEADS = {**_DENSE, "attention.key_length": "head_dim"}
_EXPERTS = {
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
}
_GEMMA2 = {
    **_HEADS,
    "attention.sliding_window": "sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}
FAMILIES: dict[str, tuple[str, dict[str, str]]] = {
    "llama": ("llama", _HEADS),
    "qwen2": ("qwen2", _DENSE),
    "qwen2moe": (
        "qwen2_moe",
        {**_DENSE, **_EXPERTS, "expert_shared_feed_forward_length": "shared_expert_intermediate_size"},
    ),
    "qwen3": ("qwen3", _HEADS),
    "qwen3moe": ("qwen3_moe", {**_HEADS, **_EXPERTS}),
    "gemma": ("gemma", _HEADS),
    "gemma2": ("gemma2", _GEMMA2),
    "gemma3": ("gemma3_text", {key: name for key, name in _GEMMA2.items() if key != "attn_logit_softcapping"}),
    "phi3": ("phi3", {**_DENSE, "attention.sliding_window": "sliding_window"}),
}
"""Architecture in the file -> model type of transformers, and key of the file -> field of the config."""
_READ_ELSEWHERE = {"vocab_size", "rope.freq_base", "rope.dimension_count", "rope.scaling.finetuned"}
ROPE_TENSORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
_LARGEST = {"gemma2": 46, "gemma3": 62}
"""Layers of the one size whose attention is scaled by the width over the heads."""


def config_of(fields: Mapping[str, Any], rope: Mapping[str, np.ndarray], rows: int, tied: bool) -> PretrainedConfig:
    """Return the config of a model.

    Args:
        fields: the file's metadata by name.
        rope: those of :data:`ROPE_TENSORS` that the file has, each of one number per pair of rotated dimensions.
        rows: rows of the embedding.
        tied: True if the file has no output matrix of its own.

    Raises:
        UserError: a family, or a key of it, that is not known here.
    """
    family = str(fields.get("general.architecture"))
    if family not in FAMILIES:
        problem = f"it holds a model of the family {family!r}; GGUF files of {', '.join(FAMILIES)} are read"
        raise UserError(FIELD, problem, fix=ORIGINAL)
    if int(fields.get("split.count", 1)) > 1:
        problem = f"it is one of {fields['split.count']} parts of a model"
        raise UserError(FIELD, problem, fix="join them: llama-gguf-split --merge FIRST_PART WHOLE.gguf")
    given = {key.removeprefix(f"{family}."): value for key, value in fields.items() if key.startswith(f"{family}.")}
    kind, names = FAMILIES[family]
    values = {name: given.pop(key) for key, name in names.items() if key in given}
    for name, value in values.items():
        if isinstance(value, list):  # one number for each layer
            if len(set(value)) > 1:
                raise UserError(FIELD, f"its {name} differs from layer to layer", fix=ORIGINAL)
            values[name] = value[0]
    head = values.get("head_dim") or values["hidden_size"] // values["num_attention_heads"]
    rotated = int(given.get("rope.dimension_count", head))
    if family == "llama" and "head_dim" not in values:
        values["head_dim"] = head = rotated
    scaling = _rope(given, rope, values["max_position_embeddings"])
    if rotated != head:
        scaling["partial_rotary_factor"] = rotated / head
    values |= _of_family(family, values, given, scaling, rotated == head)
    if given.pop("attention.value_length", head) != head:
        raise UserError(FIELD, "its values are not as long as its keys", fix=ORIGINAL)
    for key, value in sorted(given.items()):
        if key not in _READ_ELSEWHERE and not _absent(key, value):
            raise UserError(FIELD, f"it says {family}.{key} = {value!r}, which is not understood here", fix=ORIGINAL)
    special = {
        f"{name}_token_id": fields.get(f"tokenizer.ggml.{key}_token_id")
        for name, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"))
    }
    config: PretrainedConfig = AutoConfig.for_model(
        kind, **values, **special, vocab_size=rows, tie_word_embeddings=tied, dtype="float32"
    )
    return config


def _absent(key: str, value: Any) -> bool:
    """True for the keys by which some converters say that there is no mixture of experts."""
    return key in ("expert_count", "expert_used_count") and value == 0


def _of_family(
    family: str, values: Mapping[str, Any], given: dict[str, Any], scaling: dict[str, Any], whole: bool
) -> dict[str, Any]:
    """Return what the config of a family says beside the file's own fields; its keys are taken out of ``given``."""
    if family == "phi3":
        window = {"sliding_window": values.get("sliding_window") or None}  # Phi-4 writes 0 for none
        original = scaling.pop("original_max_position_embeddings", None)
        if original:
            window["original_max_position_embeddings"] = original
        return {**window, "rope_parameters": scaling}
    if not whole:
        raise UserError(FIELD, "only a part of each head is rotated, which this family does not do", fix=ORIGINAL)
    if family in _LARGEST:
        largest = values["num_hidden_layers"] == _LARGEST[family]
        heads = values["num_attention_heads"]
        scale = {"query_pre_attn_scalar": values["hidden_size"] // heads if largest else values["head_dim"]}
        if family == "gemma2":
            return {**scale, "rope_parameters": scaling}
        local = {"rope_type": "default", "rope_theta": given.pop("rope.freq_base_swa", 10000.0)}
        return {**scale, "rope_parameters": {"full_attention": scaling, "sliding_attention": local}}
    return {"rope_parameters": scaling, **({"norm_topk_prob": True} if family == "qwen3moe" else {})}


def _rope(given: dict[str, Any], tensors: Mapping[str, np.ndarray], positions: int) -> dict[str, Any]:
    """Return transformers' ``rope_parameters``; the keys of a scaling are taken out of ``given``."""
    theta = float(given.get("rope.freq_base", 10000.0))
    scaling = {key: given.pop(key) for key in list(given) if key.startswith("rope.scal")}
    scaling.pop("rope.scaling.finetuned", None)  # says how the model was trained, not what it computes
    kind = scaling.pop("rope.scaling.type", None)
    factor = scaling.pop("rope.scaling.factor", None)
    factor = scaling.pop("rope.scale_linear", None) if factor is None else factor
    original = scaling.pop("rope.scaling.original_context_length", None)
    parameters: dict[str, Any] = {"rope_type": "default", "rope_theta": theta}
    if kind == "longrope" or not tensors.keys().isdisjoint(ROPE_TENSORS[1:]):
        _check_longrope(kind, original, tensors)
        parameters |= {
            "rope_type": "longrope",
            "long_factor": tensors[ROPE_TENSORS[1]].tolist(),
            "short_factor": tensors[ROPE_TENSORS[2]].tolist(),
            "original_max_position_embeddings": int(original),
            "factor": positions / original,
            "attention_factor": float(scaling.pop("rope.scaling.attn_factor", 1.0)),
        }
    elif kind == "yarn" and factor and original:
        parameters |= {"rope_type": "yarn", "factor": float(factor), "original_max_position_embeddings": int(original)}
        parameters |= {name: scaling.pop(f"rope.scaling.yarn_{name}", default) for name, default in _BETAS.items()}
    elif kind in (None, "linear") and factor not in (None, 0, 1):
        parameters |= {"rope_type": "linear", "factor": float(factor)}
    elif kind not in (None, "none", "linear"):
        raise UserError(FIELD, f"its positions are scaled by {kind!r}, which is not understood here", fix=ORIGINAL)
    elif original and original != positions:
        parameters |= {"original_max_position_embeddings": int(original)}
    if ROPE_TENSORS[0] in tensors:
        divided = _llama3(tensors[ROPE_TENSORS[0]], theta)
        if divided and parameters["rope_type"] != "default":
            problem = f"it has {ROPE_TENSORS[0]} beside positions scaled by {parameters['rope_type']!r}"
            raise UserError(FIELD, problem, fix=ORIGINAL)
        parameters |= divided
    for key, value in sorted(scaling.items()):
        if value not in (0, 1):  # those that change nothing
            raise UserError(FIELD, f"it says {key} = {value!r}, which is not understood here", fix=ORIGINAL)
    return parameters


def _check_longrope(kind: str | None, original: int | None, tensors: Mapping[str, np.ndarray]) -> None:
    """Refuse a file that has a part only of what stretches positions by factors for short and for long texts."""
    missing = [name for name in ROPE_TENSORS[1:] if name not in tensors]
    if missing:
        problem = f"its positions are scaled by 'longrope', but it has no {missing[0]}"
    elif kind not in (None, "longrope"):
        problem = f"it has {ROPE_TENSORS[1]} beside positions scaled by {kind!r}"
    elif not original:
        problem = f"it has {ROPE_TENSORS[1]}, but no rope.scaling.original_context_length"
    else:
        return
    raise UserError(FIELD, problem, fix=ORIGINAL)


_BETAS = {"beta_fast": 32.0, "beta_slow": 1.0}


def _llama3(divisors: np.ndarray, theta: float) -> dict[str, Any]:
    """Return the parameters from which Llama 3.1's converter computed what frequencies are divided by.

    The file has the result only. All models of this kind stretch 8,192 positions, with the bounds 1 and 4.
    """
    if np.allclose(divisors, 1):
        return {}
    factor = float(divisors.max())
    wavelengths = 2 * np.pi * theta ** (np.arange(len(divisors)) / len(divisors))
    smooth = np.clip((8192 / wavelengths - 1) / (4 - 1), 0, 1)
    if not np.allclose(divisors, 1 / ((1 - smooth) / factor + smooth), rtol=1e-4):
        problem = "its rope_freqs.weight divides frequencies by numbers that Llama 3's rule does not give"
        raise UserError(FIELD, problem, fix=ORIGINAL)
    bounds = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    return {"rope_type": "llama3", "factor": factor, **bounds}
