"""Cache memory of a row during sampling, from the model's config: keys, values and states of every layer."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from transformers import DynamicCache, PretrainedConfig
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer, LinearAttentionCacheLayerMixin


@dataclass(frozen=True)
class KVCacheSize:
    """Cache memory of one row, in bytes.

    Args:
        layers: for each layer with keys and values, the bytes of a token and the number of last tokens kept
            (None: all).
        state: all recurrent states and convolutions together, independent of the length of the row.
    """

    layers: tuple[tuple[int, int | None], ...]
    state: int = 0

    @property
    def token(self) -> int:
        """Bytes of a token's keys and values in all layers."""
        return sum(size for size, _ in self.layers)

    @property
    def largest_layer(self) -> int:
        """Largest bytes of a token's keys and values in one layer."""
        return max((size for size, _ in self.layers), default=0)

    def row(self, tokens: int) -> int:
        """Return the bytes of a row of ``tokens`` tokens."""
        total = self.state
        for size, window in self.layers:
            total += size * (tokens if window is None else min(tokens, window))
        return total


def kv_cache_size(config: PretrainedConfig, itemsize: int) -> KVCacheSize:
    """Return a model's cache memory per row, from the kinds of its layers in transformers' cache.

    Args:
        config: of the model; its text model counts.
        itemsize: bytes per number in the compute dtype; states are assumed to be float32.
    """
    text = config.get_text_config(decoder=True)
    settings = list(getattr(text, "per_layer_config", ())) or [text] * _size(text, "num_hidden_layers")
    layers = []
    state = 0
    for kind, layer in zip(DynamicCache(config=config).layers, settings, strict=False):  # some share another layer's
        if isinstance(kind, DynamicLayer):
            window = int(kind.sliding_window) if isinstance(kind, DynamicSlidingWindowLayer) else None
            layers.append((_numbers(layer) * itemsize, window))
        if isinstance(kind, LinearAttentionCacheLayerMixin):
            state += 4 * _state(layer)
    return KVCacheSize(tuple(layers), state)


def _numbers(config: Any) -> int:
    """Return the count of numbers in a token's keys and values in a layer, 0 if the config does not say.

    DeepSeek's attention keeps the latent from which both are computed.
    """
    of = functools.partial(_size, config)
    latent = of("kv_lora_rank")
    if latent:
        return latent + of("qk_rope_head_dim")
    attending = of("num_attention_heads")
    size = of("attention_head_dim", "head_dim") or of("hidden_size") // max(1, attending)
    return 2 * (of("num_key_value_heads") or attending) * size


def _size(config: Any, *names: str) -> int:
    """Return the first of some fields that exists, for a list its largest number; 0 if none does."""
    values = (getattr(config, name, None) for name in names)
    value = next((value for value in values if value is not None), 0)
    return int(max(value, default=0) if isinstance(value, list | tuple) else value)


def _state(config: Any) -> int:
    """Return the count of numbers in a layer's recurrent state, from its family's field names; 0 if none is known."""
    of = functools.partial(_size, config)
    value_heads = of("linear_num_value_heads")
    if value_heads:  # gated DeltaNet: Qwen3-Next
        key_size = of("linear_key_head_dim")
        keys = of("linear_num_key_heads") * key_size
        inner = value_heads * of("linear_value_head_dim")
        return inner * key_size + (2 * keys + inner) * of("linear_conv_kernel_dim")
    kernel = of("conv_L_cache")
    if kernel:  # LFM2
        return of("hidden_size") * kernel
    # Mamba and its kin
    heads = of("mamba_n_heads", "mamba_num_heads", "n_mamba_heads")
    size = of("mamba_d_state", "ssm_state_size")
    inner = heads * of("mamba_d_head", "mamba_head_dim", "mamba_headdim")
    inner = inner or of("hidden_size") * of("mamba_expand", "expand")
    groups = 2 * size * of("mamba_n_groups", "mamba_ngroups", "n_groups") if heads else 0
    return inner * size + (inner + groups) * of("mamba_d_conv", "conv_kernel")
