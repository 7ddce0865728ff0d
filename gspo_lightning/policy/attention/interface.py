"""Attention plans in an unmodified transformers model.

transformers looks an attention function up by the name in the model's config and passes it the keyword arguments
of the model call. This module wraps the functions of that table: with a plan among the keyword arguments the plan
attends, otherwise the original function. The model's config does not change, and a layer that is recomputed in the
backward pass (gradient checkpointing) gets its plan again.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import masking_utils
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from gspo_lightning.policy.kernels.thread_state import without_autocast

IMPLEMENTATIONS = ("sdpa", "flash_attention_2", "flash_attention_3")
ARGUMENT = "gspo_plan"
FLOAT32_ON: tuple[str, ...] = ("cpu",)
"""Types of devices where attention is float32 under autocast: on a CPU PyTorch's flash kernel takes three times as long
for its gradients in bfloat16, and products of few rows take 1.3 times as long."""
_IGNORED = {"position_ids", "use_cache", "cache_position", "is_causal", "output_attentions", "output_router_logits"}
_WINDOWS = {"sliding_attention": "sliding_window", "chunked_attention": "attention_chunk_size"}
"""Kind of a layer (of a config's ``layer_types``) -> the config field with its window in tokens."""
_planned: ContextVar[bool] = ContextVar("planned", default=False)
_attended: ContextVar[list[int] | None] = ContextVar("attended", default=None)


class UnsupportedAttentionError(Exception):
    """Attention of a kind that plans do not support; the padded path does."""


class Plan(Protocol):
    """Attention of one forward pass over M packed tokens."""

    longest: int
    """Tokens of the longest row, prompt and response together."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """Attend with [M, H, d] queries over [M, K, d] keys and values (K divides H); returns [M, H, d]."""


def _attention_by(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def attention(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *args: Any, **options: Any) -> Any:
        plan: Plan | None = options.pop(ARGUMENT, None)
        if plan is None:
            return original(module, query, key, value, *args, **options)
        return _planned_attention(plan, module, query, key, value, *args, **options)

    return attention


def _planned_attention(
    plan: Plan,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attend by a plan: transformers' [1, H, M, d] to [1, M, H, d]."""
    if attention_mask is not None or dropout:
        raise UnsupportedAttentionError("a mask or dropout in the attention")
    if sliding_window is not None and plan.longest > sliding_window:
        raise UnsupportedAttentionError(f"a sliding window of {sliding_window} tokens and rows of up to {plan.longest}")
    for name, option in options.items():
        if option is not None and name not in _IGNORED:
            raise UnsupportedAttentionError(f"{name} in the attention")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    layer = getattr(module, "layer_idx", None)
    if layer is None:
        raise UnsupportedAttentionError(f"{type(module).__name__} does not know the number of its layer")
    attended = _attended.get()
    if attended is not None:
        attended.append(layer)
    dtype = attention_dtype(*(x.dtype for x in (query, key, value)), device=query.device)
    q, k, v = (x.to(dtype).squeeze(0).transpose(0, 1) for x in (query, key, value))
    with without_autocast(query.device) if query.is_cpu else contextlib.nullcontext():
        return plan.attend(layer, q, k, v, scale).unsqueeze(0), None


def attention_dtype(*inputs: torch.dtype, device: torch.device) -> torch.dtype:
    """Return the dtype of attention by a plan: of its products, and of keys and values in a cache.

    Under autocast it is autocast's, but float32 on a device of :data:`FLOAT32_ON`. Otherwise it is the promoted one:
    normalised queries and keys may be float32, values bfloat16.

    Args:
        inputs: dtypes of queries, keys and values, or of the model's products.
        device: of the computation.
    """
    if torch.is_autocast_enabled(device.type):
        return torch.float32 if device.type in FLOAT32_ON else torch.get_autocast_dtype(device.type)
    return functools.reduce(torch.promote_types, inputs)


def _mask_by(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def mask(*args: Any, **options: Any) -> Any:
        return None if _planned.get() else original(*args, **options)  # a plan replaces the mask

    return mask


def _unless_planned(original: Callable[..., Any]) -> Callable[..., Any]:
    """Skip transformers' search for restarting positions under a plan: it makes the host wait for the device."""

    @functools.wraps(original)
    def find(*args: Any, **options: Any) -> Any:
        return None if _planned.get() else original(*args, **options)

    return find


masking_utils.find_packed_sequence_indices = _unless_planned(masking_utils.find_packed_sequence_indices)
for _name in IMPLEMENTATIONS:
    if _name in ALL_ATTENTION_FUNCTIONS:
        ALL_ATTENTION_FUNCTIONS.register(_name, _attention_by(ALL_ATTENTION_FUNCTIONS[_name]))
        ALL_MASK_ATTENTION_FUNCTIONS.register(_name, _mask_by(ALL_MASK_ATTENTION_FUNCTIONS[_name]))


@contextlib.contextmanager
def with_plan(backbone: nn.Module, plan: Plan) -> Iterator[dict[str, Any]]:
    """Make a backbone attend by a plan; yields the keyword arguments to call it with.

    Raises:
        UnsupportedAttentionError: the model's attention does not look its function up in the table.
    """
    name = str(backbone.config._attn_implementation)  # type: ignore[union-attr]
    if name not in IMPLEMENTATIONS:
        raise UnsupportedAttentionError(f"attn_implementation {name!r}")
    token = _planned.set(True)
    try:
        yield {ARGUMENT: plan, "use_cache": False}
    finally:
        _planned.reset(token)


@contextlib.contextmanager
def layers_attended() -> Iterator[list[int]]:
    """Record the number of each layer that attends by a plan, in order, once per call."""
    layers: list[int] = []
    token = _attended.set(layers)
    try:
        yield layers
    finally:
        _attended.reset(token)


def windows(backbone: nn.Module) -> list[int]:
    """Return the sliding window sizes of a model's layers, in tokens; the config's if no layer has the field (Mistral).

    Some layers have a window only by their kind in the config (SmolLM3): their mask is made elsewhere.
    """
    config = getattr(backbone, "config", None)
    sizes: list[Any] = [module.sliding_window for module in backbone.modules() if hasattr(module, "sliding_window")]
    if not sizes:
        sizes = [getattr(config, "sliding_window", None)]
    kinds = set(getattr(config, "layer_types", None) or ())
    sizes += [getattr(config, name, None) for kind, name in _WINDOWS.items() if kind in kinds]
    return sorted({size for size in sizes if isinstance(size, int) and size > 0})
