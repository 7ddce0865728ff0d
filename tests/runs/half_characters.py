"""A policy that likes half a character: real weights whose every turn calls a tool with lone surrogates."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from tokenizers import AddedToken
from transformers import Qwen3Config, Qwen3ForCausalLM

from tests.data.prompts.families import FAMILIES

BEGIN = '<tool_call>\n{"name": "echo", "arguments": {"text": "'
HALVES = ("\\ud83d", "\\ude00 and \\uD83D")
END = '"}}\n</tool_call>'
_WIDTH, _SURE = 512, 40.0


def save_policy(folder: Path) -> Path:
    """Write model and tokenizer; the next token depends on the last one alone.

    After anything: a call, or "7". After the beginning of a call one of two texts with halves of characters, then its
    end, and the end of the turn. Layers add nothing, embeddings are nearly orthogonal, and the head holds what follows.
    """
    tokenizer = FAMILIES["qwen"].tokenizer()
    pieces = [BEGIN, *HALVES, END]
    tokenizer.add_tokens([AddedToken(piece, special=False, normalized=False) for piece in pieces])
    begin, *halves, end = tokenizer.convert_tokens_to_ids(pieces)
    over, seven = (
        tokenizer.convert_tokens_to_ids("<|im_end|>"),
        tokenizer("7", add_special_tokens=False)["input_ids"][0],
    )
    torch.manual_seed(0)
    size = len(tokenizer)
    config = Qwen3Config(
        vocab_size=size, hidden_size=_WIDTH, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1,
        num_key_value_heads=1, head_dim=8, tie_word_embeddings=False, max_position_embeddings=4096, eos_token_id=over,
        pad_token_id=over, bos_token_id=None,
    )  # fmt: skip
    model = Qwen3ForCausalLM(config)
    follows = torch.zeros(size, size)
    follows[:, [begin, seven]] = 1.0
    follows[begin] = 0.0
    follows[begin, halves] = 1.0
    for last, following in [*((half, end) for half in halves), (end, over), (seven, over)]:
        follows[last] = 0.0
        follows[last, following] = 1.0
    embeddings = torch.nn.functional.normalize(torch.randn(size, _WIDTH), dim=1)
    with torch.no_grad():
        layer = model.model.layers[0]
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
        model.model.embed_tokens.weight.copy_(embeddings)
        model.lm_head.weight.copy_(_SURE / math.sqrt(_WIDTH) * follows.T @ embeddings)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
