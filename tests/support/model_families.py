"""Tiny models of the families that the package says it can train, built from configs with random weights."""

from __future__ import annotations

from typing import Any

import torch
from transformers import (
    CohereConfig,
    CohereForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
)

from gspo_lightning.policy.policy import Policy
from gspo_lightning.policy.tiny import CHARACTERS, SPECIAL, build_tiny_model, character_tokenizer

VOCABULARY = len(SPECIAL) + len(CHARACTERS)
WINDOW = 6
"""Sliding window of the Gemma 2 model: shorter than prompts and responses of the tests."""

COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "initializer_range": 0.1,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "bos_token_id": None,
}

BUILDERS: dict[str, Any] = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**COMMON)),
    "gemma2": lambda: Gemma2ForCausalLM(
        Gemma2Config(
            **COMMON,
            sliding_window=WINDOW,
            final_logit_softcapping=2.0,
            query_pre_attn_scalar=8,
            attn_implementation="eager",  # as it is loaded, and as transformers 5.24 makes it
        )
    ),
    "granite": lambda: GraniteForCausalLM(
        GraniteConfig(**COMMON, logits_scaling=3.0, embedding_multiplier=2.0, residual_multiplier=0.5)
    ),
    "qwen3-next": lambda: Qwen3NextForCausalLM(
        Qwen3NextConfig(
            **COMMON,
            layer_types=["linear_attention", "full_attention"],
            linear_num_key_heads=2,
            linear_num_value_heads=4,
            linear_key_head_dim=8,
            linear_value_head_dim=8,
            num_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=16,
            shared_expert_intermediate_size=16,
        )
    ),
    "cohere": lambda: CohereForCausalLM(CohereConfig(**COMMON, logit_scale=0.3)),
}
FAMILIES = ["qwen3", "qwen3-moe", *BUILDERS]


def build_model(family: str, seed: int = 0) -> PreTrainedModel:
    if family not in BUILDERS:
        return build_tiny_model(f"tiny-{family}", seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: PreTrainedModel = BUILDERS[family]()
    return model


def build_policy(family: str, seed: int = 0, sharpen: float = 3.0) -> Policy:
    """In eval mode; matrices are scaled so that predictions depend clearly on every earlier token."""
    model = build_model(family, seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(sharpen)
    return Policy(model, character_tokenizer()).eval()
