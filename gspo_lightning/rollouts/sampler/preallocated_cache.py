"""transformers' cache with preallocated room: tokens are written in place, not appended by ``torch.cat``."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PretrainedConfig, cache_utils
from transformers.cache_utils import CacheLayerMixin, DynamicSlidingWindowLayer, LinearAttentionCacheLayerMixin

FIRST = 32
"""Minimum spare tokens of a new allocation; it takes an eighth of the held tokens if that is more."""


class PreallocatedTensor:
    """Tensor [..., n, d] that grows along its tokens n, in place while there is room."""

    def __init__(self) -> None:
        self._store: Tensor | None = None
        self._held: Tensor | None = None
        self._end = 0

    def extended(self, held: Tensor, new: Tensor, window: int | None = None) -> tuple[Tensor, Tensor]:
        """Append ``new``; return all tokens, and those to hold. The values equal those of ``torch.cat``.

        Args:
            held: the held tokens that the last call returned; any other tensor is copied first.
            new: [..., m, d].
            window: tokens that the next token sees, itself included; None is all.
        """
        count, more = (held.shape[-2] if held.numel() else 0), new.shape[-2]
        if count and held.dtype != new.dtype:
            full, self._store = torch.cat([held, new], dim=-2), None
        else:
            if self._store is None or held is not self._held or self._end + more > self._store.shape[-2]:
                capacity = count + more + max(FIRST, (count + more) // 8)
                self._store, self._end = new.new_empty((*new.shape[:-2], capacity, new.shape[-1])), count
                if count:
                    self._store[..., :count, :] = held
            self._store[..., self._end : self._end + more, :] = new
            self._end += more
            full = self._store[..., self._end - count - more : self._end, :]
        unseen = 0 if window is None else max(0, count + more - (window - 1))
        self._held = full[..., unseen:, :] if unseen else full
        return full, self._held


class _Layer:
    """Mixin for transformers' cache layers that replaces ``torch.cat`` by in-place writes."""

    keys: Tensor
    values: Tensor
    is_initialized: bool

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Append keys and values [R, K, m, d]; return all that the new tokens see."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)  # type: ignore[attr-defined]
        window = None
        if isinstance(self, DynamicSlidingWindowLayer):
            window = self.sliding_window
            self.cumulative_length += key_states.shape[-2]
        if "preallocated" not in vars(self):
            self.preallocated = PreallocatedTensor(), PreallocatedTensor()
        keys, self.keys = self.preallocated[0].extended(self.keys, key_states, window)
        values, self.values = self.preallocated[1].extended(self.values, value_states, window)
        return keys, values


def _kinds() -> dict[type, Any]:
    """Return a preallocated version of each kind of transformers' layers that uses ``torch.cat``."""
    names = (
        "DynamicLayer", "DynamicSlidingWindowLayer", "DynamicIndexedLayer", "LinearAttentionAndFullAttentionLayer",
        "LinearAttentionAndSlidingWindowAttentionLayer",
    )  # fmt: skip
    known = [getattr(cache_utils, name) for name in names if hasattr(cache_utils, name)]
    return {kind: type(f"Preallocated{kind.__name__}", (_Layer, kind), {}) for kind in known}


KINDS: Mapping[Any, Any] = _kinds()


def preallocated_cache(config: PretrainedConfig) -> DynamicCache:
    """Return the cache that transformers makes for a model; layers of an unknown kind stay as they are."""
    cache = DynamicCache(config=config)
    for i, layer in enumerate(cache.layers):
        if type(layer) in KINDS and not getattr(layer, "record_past", False):
            kind = KINDS[type(layer)]
            cache.layers[i] = grown = kind.__new__(kind)
            grown.__dict__.update(vars(layer))
    return cache


def cache_argument(model: nn.Module) -> str:
    """Return the name of the argument by which a model's forward pass takes its cache.

    From transformers 5.24 on there is one name. Before, Mamba had one of its own, and code that comes with a checkpoint
    still has the names of its time.
    """
    parameters = inspect.signature(model.forward).parameters
    return next((name for name in ("cache", "cache_params") if name in parameters), "past_key_values")


def only_states(cache: DynamicCache) -> bool:
    """True if all that a cache holds is recurrent state (Mamba): it has no keys that a mask could hide."""
    layers = cache.layers
    states = any(isinstance(layer, LinearAttentionCacheLayerMixin) for layer in layers)
    return states and not any(isinstance(layer, CacheLayerMixin) for layer in layers)
