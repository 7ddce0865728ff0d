"""The models that are measured: transformers' Qwen3 and Qwen3-MoE from a config, random weights, made-up words."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

__all__ = ["EOS", "MODELS", "PAD", "Shape", "build_model", "word_tokenizer"]

EOS, PAD, UNKNOWN = 0, 1, 2
"""Token ids. The end token is 0 so that a uniform draw of exactly 0 selects it (:mod:`benchmarks.forced`)."""


@dataclass(frozen=True)
class Shape:
    """Sizes of a decoder; output head and input embedding are tied, as in the small Qwen3 models."""

    vocabulary: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    """Of the MLP, or of each expert."""
    experts: int = 0
    """0: dense."""
    experts_per_token: int = 0

    @property
    def body(self) -> int:
        """Weights that multiply each token in the layers; of the experts only those a token goes through."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        router = self.hidden * self.experts
        mlp = 3 * self.hidden * self.intermediate * max(self.experts_per_token, 1)
        return self.layers * (attention + router + mlp)

    @property
    def head(self) -> int:
        """Weights that multiply each hidden state that is scored."""
        return self.hidden * self.vocabulary


MODELS: dict[str, Shape] = {
    "1m": Shape(512, 128, 4, 4, 4, 32, 384),
    "10m": Shape(8192, 256, 8, 4, 4, 64, 768),
    "moe": Shape(512, 128, 4, 4, 4, 32, 192, experts=8, experts_per_token=2),
    "head": Shape(151_936, 64, 2, 4, 4, 16, 192),
}
"""0.9M, 8.9M and 2.7M parameters, and a small body under the vocabulary of Qwen3."""


def build_model(shape: Shape, *, seed: int = 0, context: int = 1024) -> PreTrainedModel:
    """Random float32 weights, SDPA attention; the same weights for the same seed."""
    settings = {
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "intermediate_size": shape.intermediate,
        "max_position_embeddings": context,
        "tie_word_embeddings": True,
        "eos_token_id": EOS,
        "pad_token_id": PAD,
        "bos_token_id": None,
        "attn_implementation": "sdpa",
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: PreTrainedModel
        if shape.experts:
            model = Qwen3MoeForCausalLM(
                Qwen3MoeConfig(
                    **settings,
                    num_experts=shape.experts,
                    num_experts_per_tok=shape.experts_per_token,
                    moe_intermediate_size=shape.intermediate,
                    norm_topk_prob=True,
                    decoder_sparse_step=1,
                )
            )
        else:
            model = Qwen3ForCausalLM(Qwen3Config(**settings))
    return model.float()


def word_tokenizer(vocabulary: int) -> PreTrainedTokenizerFast:
    """One token per word: ``w3`` is token 3; 0, 1 and 2 end, pad and stand for unknown words."""
    words = {"<eos>": EOS, "<pad>": PAD, "<unk>": UNKNOWN} | {f"w{i}": i for i in range(3, vocabulary)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<eos>",
        pad_token="<pad>",
        unk_token="<unk>",
        clean_up_tokenization_spaces=False,
        padding_side="left",
    )
