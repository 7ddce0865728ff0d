"""What a row is said to keep is what transformers' cache holds after a forward pass."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, Qwen3Config

from gspo_lightning.policy.attention.kv_cache_size import kv_cache_size
from gspo_lightning.rollouts.sampler.preallocated_cache import cache_argument
from tools.models import tiny

TOKENS = 13


def tensors(layer: Any) -> Iterable[Tensor]:
    """Of a layer of a cache: keys, values, states."""
    for name, value in vars(layer).items():
        found = value.values() if isinstance(value, dict) else [value]
        yield from (x for x in found if isinstance(x, Tensor) and not name.startswith("_"))


FAMILIES = ["llama", "gemma3_text", "deepseek_v3", "qwen3_next", "lfm2", "falcon_h1", "mistral"]
MORE = ["gpt_oss", "llama4_text", "gemma3n_text", "bamba", "jamba", "zamba2", "granitemoehybrid", "qwen3_5"]


@pytest.mark.parametrize("family", [*FAMILIES, *(pytest.param(f, marks=pytest.mark.long) for f in MORE)])
def test_a_row_keeps_what_transformers_cache_holds(family: str) -> None:
    model = tiny.build(family)
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(torch.randint(3, 20, (1, TOKENS)), use_cache=True, **{cache_argument(model): cache})
    held = sum(x.nbytes for layer in cache.layers for x in tensors(layer))
    found = kv_cache_size(model.config, 4)
    windows = sum(size for size, kept in found.layers if kept is not None and kept <= TOKENS)
    assert found.row(TOKENS) - windows == held  # a window sees one token less of the past than it has


def test_kv_cache_bytes_of_qwen3_by_hand() -> None:
    config = Qwen3Config(num_hidden_layers=28, num_attention_heads=16, num_key_value_heads=8, head_dim=128)
    found = kv_cache_size(config, 2)  # Qwen3-1.7B in bfloat16
    assert found.token == 28 * 2 * 8 * 128 * 2
    assert found.row(8192) * 512 == 481_036_337_152
    assert found.largest_layer * 28 == found.token
