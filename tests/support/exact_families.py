"""Tiny models whose training forward is easily got wrong: random, dependent on the call, stateful, or not causal."""

from __future__ import annotations

from typing import Any

import torch
from transformers import (
    BertConfig,
    BertLMHeadModel,
    DeepseekV32Config,
    DeepseekV32ForCausalLM,
    DiffLlamaConfig,
    DiffLlamaForCausalLM,
    FalconH1Config,
    FalconH1ForCausalLM,
    JambaConfig,
    JambaForCausalLM,
    Lfm2Config,
    Lfm2ForCausalLM,
    Llama4ForCausalLM,
    Llama4TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MllamaForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PhimoeConfig,
    PhimoeForCausalLM,
    PreTrainedModel,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
    RemBertConfig,
    RemBertForCausalLM,
    SmolLM3Config,
    SmolLM3ForCausalLM,
    XLMConfig,
    XLMWithLMHeadModel,
)
from transformers.models.mllama.configuration_mllama import MllamaTextConfig

from tests.support.model_families import COMMON, VOCABULARY

SWITCH = 16
"""Positions beyond which the rotary embeddings of ``phi3`` and ``dynamic`` change; shorter than rows of the tests."""
_LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0, 1.1, 1.2, 1.3],
    "long_factor": [2.0, 4.0, 8.0, 16.0],
    "rope_theta": 10000.0,
    "original_max_position_embeddings": SWITCH,
}
_DYNAMIC = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
_MAMBA: dict[str, Any] = {
    "mamba_d_ssm": 64,
    "mamba_n_heads": 8,
    "mamba_d_head": 8,
    "mamba_d_state": 8,
    "mamba_chunk_size": 8,
}
_WINDOW = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8, "use_sliding_window": False}
_NO_HEAD_DIM = {k: v for k, v in COMMON.items() if k != "head_dim"}
_SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
_LINEAR: dict[str, Any] = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "num_experts": 4,
    "num_experts_per_tok": 2,
}

BUILDERS: dict[str, Any] = {
    "phimoe": lambda: PhimoeForCausalLM(
        PhimoeConfig(**_NO_HEAD_DIM, num_local_experts=4, num_experts_per_tok=2, router_jitter_noise=0.2)
    ),
    "opt": lambda: OPTForCausalLM(
        OPTConfig(
            vocab_size=VOCABULARY,
            hidden_size=32,
            ffn_dim=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            word_embed_proj_dim=32,
            max_position_embeddings=256,
            dropout=0.3,
            layerdrop=0.5,
            pad_token_id=0,
        )
    ),
    "phi3": lambda: Phi3ForCausalLM(
        Phi3Config(**_NO_HEAD_DIM, rope_parameters=dict(_LONGROPE), original_max_position_embeddings=SWITCH)
    ),
    "dynamic": lambda: LlamaForCausalLM(
        LlamaConfig(**(COMMON | {"max_position_embeddings": SWITCH}), rope_parameters=dict(_DYNAMIC))
    ),
    "lfm2": lambda: Lfm2ForCausalLM(Lfm2Config(**_NO_HEAD_DIM, layer_types=["conv", "full_attention"])),
    "falcon_h1": lambda: FalconH1ForCausalLM(FalconH1Config(**COMMON, **_MAMBA, mamba_n_groups=1)),
    "jamba": lambda: JambaForCausalLM(
        JambaConfig(
            **_NO_HEAD_DIM,
            attn_layer_period=2,
            attn_layer_offset=1,
            expert_layer_period=2,
            expert_layer_offset=1,
            num_experts=4,
            mamba_d_state=8,
            mamba_dt_rank=4,
            use_mamba_kernels=False,
        )
    ),
    "qwen3_next": lambda: Qwen3NextForCausalLM(
        Qwen3NextConfig(**COMMON, **_LINEAR, layer_types=["linear_attention", "full_attention"])
    ),
    "smollm3": lambda: SmolLM3ForCausalLM(SmolLM3Config(**_NO_HEAD_DIM, **_WINDOW)),
    "llama4": lambda: Llama4ForCausalLM(
        Llama4TextConfig(**COMMON, intermediate_size_mlp=64, num_local_experts=2, num_experts_per_tok=1)
    ),
    "mllama": lambda: MllamaForCausalLM(
        MllamaTextConfig(
            vocab_size=VOCABULARY,
            **_SMALL,
            num_key_value_heads=2,
            cross_attention_layers=[],
            max_position_embeddings=256,
            pad_token_id=0,
            eos_token_id=1,
            bos_token_id=2,
            initializer_range=0.1,
        )
    ),
    "diffllama": lambda: DiffLlamaForCausalLM(DiffLlamaConfig(**_NO_HEAD_DIM)),
    "deepseek_v32": lambda: DeepseekV32ForCausalLM(
        DeepseekV32Config(
            **(_NO_HEAD_DIM | {"num_key_value_heads": 4}),
            q_lora_rank=16,
            kv_lora_rank=16,
            qk_rope_head_dim=8,
            qk_nope_head_dim=8,
            v_head_dim=8,
            index_n_heads=2,
            index_head_dim=8,
            index_topk=8,
            first_k_dense_replace=1,
            n_routed_experts=4,
            num_experts_per_tok=2,
            n_group=1,
            topk_group=1,
            moe_intermediate_size=32,
        )
    ),
    "bert": lambda: BertLMHeadModel(BertConfig(vocab_size=VOCABULARY, **_SMALL)),
    "rembert": lambda: RemBertForCausalLM(
        RemBertConfig(vocab_size=VOCABULARY, **_SMALL, input_embedding_size=32, output_embedding_size=48)
    ),
    "xlm": lambda: XLMWithLMHeadModel(XLMConfig(vocab_size=VOCABULARY, emb_dim=32, n_layers=2, n_heads=4)),
}


def exact_model(family: str, seed: int = 0) -> PreTrainedModel:
    """In eval mode, as it would be loaded."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: PreTrainedModel = BUILDERS[family]()
    return model.eval()
