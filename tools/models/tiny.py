"""A tiny model of any causal family that transformers knows, from the fields of its config alone.

Every field that says how large a model is gets a small value; a few families whose fields must fit each other get some
of their own. Everything else stays as the family has it, so that its layers are of the kinds that it is made of.
"""

from __future__ import annotations

import zlib
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from gspo_lightning.policy.tiny import CHARACTERS, SPECIAL

__all__ = ["FAMILIES", "LARGEST", "VOCABULARY", "WINDOW", "build", "class_name", "tiny_config"]

FAMILIES: tuple[str, ...] = tuple(sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES))
"""Model types of the installed transformers that ``AutoModelForCausalLM`` takes."""
VOCABULARY = len(SPECIAL) + len(CHARACTERS)
WINDOW = 8
"""Tokens of every sliding window, chunk and index."""
LAYERS = 4
LARGEST = 20_000_000
"""Parameters above which a model is not tiny: a field that makes it large has no rule here."""

_RULES: list[tuple[int, str]] = [
    (VOCABULARY, "vocab_size vocab_size_per_layer_input decoder_vocab_size audio_vocab_size shape_vocab_size"),
    (VOCABULARY, "pronunciation_vocab_size"),
    (32, "hidden_size n_embd d_model dim embedding_size emb_dim embedding_dim word_embed_proj_dim lru_width"),
    (32, "attention_hidden_size input_embedding_size output_embedding_size backbone_hidden_size"),
    (64, "intermediate_size decoder_ffn_dim encoder_ffn_dim ffn_hidden_size ffn_dim d_inner dff dim_ff"),
    (64, "feed_forward_size intermediate_size_mlp dense_intermediate_size"),
    (16, "moe_intermediate_size shared_expert_intermediate_size expert_ffn_hidden_size shared_intermediate_size"),
    (16, "moe_shared_expert_intermediate_size pronunciation_embed_dim shape_embed_dim hidden_size_per_layer_input"),
    (16, "q_lora_rank kv_lora_rank o_lora_rank hc_lowrank gated_norm_rank router_hidden_size adapter_rank laurel_rank"),
    (LAYERS, "encoder_layers num_encoder_layers"),  # some caches count these
    (LAYERS, "num_hidden_layers n_layer n_layers num_layers decoder_layers num_decoder_layers num_blocks"),
    (2, "num_layers_per_stack"),
    (4, "num_attention_heads n_head n_heads num_heads decoder_attention_heads encoder_attention_heads attention_heads"),
    (4, "num_encoder_attention_heads num_decoder_attention_heads swa_num_attention_heads"),
    (2, "num_key_value_heads num_kv_heads swa_num_key_value_heads num_query_groups"),
    (12, "qk_head_dim"),
    (8, "head_dim swa_head_dim dim_head d_head kv_channels attention_head_size qk_nope_head_dim v_head_dim"),
    (8, "linear_head_dim linear_key_head_dim linear_value_head_dim index_head_dim mamba_d_head mamba_head_dim"),
    (4, "qk_rope_head_dim rotary_dim linear_num_value_heads linear_num_heads time_step_rank d_rel"),
    (2, "linear_num_key_heads mamba_n_groups mamba_ngroups n_groups"),
    (8, "mamba_n_heads mamba_num_heads mamba_d_state state_size ssm_state_size"),
    (4, "num_experts n_routed_experts num_local_experts moe_num_experts"),
    (2, "num_experts_per_tok num_experts_per_token moe_topk moe_k"),
    (1, "n_shared_experts num_shared_experts moe_num_shared_experts n_group topk_group num_expert_group"),
    (1, "first_k_dense_replace num_dense_layers"),
    (WINDOW, "sliding_window window_size attention_window_size local_attention sliding_window_size index_topk"),
    (WINDOW, "attention_chunk_size keep_window_size"),
    (2, "num_kv_shared_layers index_topk_blocks"),
    (4, "index_block_size"),
    (16, "index_n_heads"),  # with few of them many scores are exactly 0, and ties are broken one way or another
    (256, "max_position_embeddings n_positions n_ctx max_seq_len context_length max_target_positions"),
]
DEPTH = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers")
SMALL: dict[str, int] = {name: value for value, names in _RULES for name in names.split()}
TOKENS = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2}
UNSET = {
    "head_dim": 8, "num_key_value_heads": 2, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "topk_group": 1, "n_group": 1, "moe_intermediate_size": 16, "n_shared_experts": 1,
}  # fmt: skip
"""Fields that some families leave to be worked out from others, which are not small yet then."""

_CONVOLUTIONS = {"layer_types": ["conv", "full_attention", "conv", "full_attention"]}
_SHARED_BLOCK = {"attention_hidden_size": 64, "attention_head_dim": 16, "num_key_value_heads": 4}
_INDEXED = {
    "indexer_n_heads": 16, "indexer_kv_heads": 1, "indexer_head_dim": 8, "indexer_budget": WINDOW,
    "indexer_compress_ratio": 4, "partial_rotary_factor": 0.5,
}  # fmt: skip
SPECIAL_FIELDS: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1, 3]},
    "blt": {"encoder_hash_byte_group_vocab": 64},
    "cohere": {"logit_scale": 1.0},
    "cohere2": {"logit_scale": 1.0},
    "cohere2_moe": {"logit_scale": 1.0},
    "cohere_compass_text": {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e4}}},
    "falcon_h1": {"mamba_d_ssm": 64},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"] * 2},
    "inkling_text": {"logits_mup_width_multiplier": 1.0},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2": _CONVOLUTIONS,
    "lfm2_moe": _CONVOLUTIONS,
    "mamba2": {"num_heads": 8},
    "minicpm3": {"dim_model_base": 32},
    "qwen4_exp": {"text_config": _INDEXED},
    "qwen4_exp_text": _INDEXED,
    "reformer": {"is_decoder": True, "axial_pos_embds": False},
    "xmod": {"default_language": "en_XX"},
    "zamba": _SHARED_BLOCK,
    "zamba2": _SHARED_BLOCK,
}
"""Model type -> fields whose values must fit each other."""


def class_name(family: str) -> str:
    """The class of ``AutoModelForCausalLM`` for a model type."""
    found = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[family]
    return found if isinstance(found, str) else str(found[0])


def tiny_config(family: str, **fields: Any) -> PretrainedConfig:
    """A config of a model type with small sizes, and some fields of the caller's.

    Raises:
        Exception: whatever the config's own checks say where small sizes do not fit each other.
    """
    return _small(CONFIG_MAPPING[family], SPECIAL_FIELDS.get(family, {}) | fields)


def _small(kind: type[PretrainedConfig], own: dict[str, Any]) -> PretrainedConfig:
    plain = kind()
    wanted: dict[str, Any] = {}
    layers = next((getattr(plain, n) for n in DEPTH if isinstance(getattr(plain, n, None), int)), None)
    for name, value in plain.to_dict().items():
        if name in SMALL and isinstance(value, int) and not isinstance(value, bool):
            wanted[name] = min(SMALL[name], value) if value > 0 else value
        elif name in TOKENS:
            wanted[name] = TOKENS[name]
        elif name in UNSET and value is None:
            wanted[name] = UNSET[name]
        elif isinstance(value, list) and len(value) == layers:
            kinds = list(dict.fromkeys(value))
            wanted[name] = [kinds[i % len(kinds)] for i in range(LAYERS)]
    if "qk_rope_head_dim" in wanted and "head_dim" in wanted:
        wanted["head_dim"] = wanted["qk_rope_head_dim"]
    if "kv_lora_rank" in wanted and "num_key_value_heads" in wanted:
        wanted["num_key_value_heads"] = wanted["num_attention_heads"]
    for name in getattr(plain, "sub_configs", {}):
        if isinstance(inner := getattr(plain, name, None), PretrainedConfig):
            wanted[name] = _small(type(inner), own.get(name, {}))
    return kind(**(wanted | {name: value for name, value in own.items() if name not in plain.sub_configs}))


def build(family: str, seed: int = 0, **fields: Any) -> PreTrainedModel:
    """The model in eval mode, float32, with weights of which none is 0 or 1, so that nothing that is left out hides.

    Raises:
        ValueError: it is not tiny.
        Exception: it cannot be built.
    """
    config = tiny_config(family, **fields)
    with torch.device("meta"):
        size = sum(p.numel() for p in AutoModelForCausalLM.from_config(config).parameters())
    if size > LARGEST:
        raise ValueError(f"has {size / 1e6:.0f} million parameters: a field of its size is not known")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed + zlib.crc32(family.encode()))
        model: PreTrainedModel = AutoModelForCausalLM.from_config(tiny_config(family, **fields), dtype=torch.float32)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() > 1 and parameter.is_floating_point():
                    parameter.normal_(std=min(0.5, 1.5 / parameter.shape[-1] ** 0.5))
                elif parameter.is_floating_point():
                    parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()


transformers.logging.set_verbosity_error()
