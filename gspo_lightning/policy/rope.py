"""Rotary embeddings whose frequencies depend on the longest row of a call, pinned to one choice for a whole run.

longrope (Phi-3, Phi-4-mini) and dynamic NTK scaling look at the longest position of a *call* to choose the frequencies
of all its rows. A row would then have other log-probabilities in another micro-batch, and other ones in the sampler,
where keys that are cached keep the frequencies they were made with.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

from torch import nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

__all__ = ["follows_length", "never_switching", "pin_rope"]

log = logging.getLogger(__name__)

PINNED = "pinned"
"""In the place of the kind of a rotary embedding: transformers leaves a kind that it does not know as it is."""


def pin_rope(model: nn.Module, longest: int) -> str | None:
    """Let every call use the frequencies of its longest row that is possible; the model's config stays as it is.

    Args:
        model: with rotary embeddings of transformers, or without any.
        longest: tokens that a row of this run may have.

    Returns:
        What was chosen, in words; None where nothing depends on the length of a call.
    """
    said = [_pin(module, longest) for module in model.modules() if hasattr(module, "rope_type")]
    chosen = next((words for words in said if words), None)
    if chosen is not None:
        log.info("rotary embeddings: %s, because rows may have up to %d tokens; one choice for the whole run",
                 chosen, longest)  # fmt: skip
    return chosen


def follows_length(config: PretrainedConfig) -> bool:
    """Whether a model of this config has rotary embeddings that depend on the longest row of a call."""
    settings = getattr(config.get_text_config(), "rope_parameters", None) or {}
    return any(_depends(part.get("rope_type")) for part in (settings, *settings.values()) if isinstance(part, dict))


@contextlib.contextmanager
def never_switching(model: PreTrainedModel) -> Iterator[None]:
    """Let ``model.generate`` keep its cache while this lasts, where rotary embeddings are pinned.

    Phi-3 throws it away behind the last position of the short factors, whatever the factors are.
    """
    config, name = model.config, "original_max_position_embeddings"
    said = vars(config).get(name)
    if said is None or not any(getattr(m, "rope_type", None) == PINNED for m in model.modules()):
        yield
        return
    setattr(config, name, 1 << 30)
    try:
        yield
    finally:
        setattr(config, name, said)


def _pin(module: Any, longest: int) -> str | None:
    kinds = module.unpinned = getattr(module, "unpinned", module.rope_type)  # may be pinned again, for other rows
    if isinstance(kinds, str):
        if not _depends(kinds):
            return None
        module.rope_type = PINNED
        return _set(module, kinds, longest, None)
    said = [_set(module, kind, longest, layer) for layer, kind in kinds.items() if _depends(kind)]
    module.rope_type = {layer: PINNED if _depends(kind) else kind for layer, kind in kinds.items()}
    return said[0] if said else None


def _depends(kind: Any) -> bool:
    """As transformers' ``dynamic_rope_update`` decides."""
    return isinstance(kind, str) and ("dynamic" in kind or kind == "longrope")


def _set(module: Any, kind: str, longest: int, layer: str | None) -> str:
    """Frequencies of rows of ``longest`` tokens, for good; returns what they are called."""
    prefix = "" if layer is None else f"{layer}_"
    options = {} if layer is None else {"layer_type": layer}
    device = getattr(module, f"{prefix}inv_freq").device
    frequencies, scaling = ROPE_INIT_FUNCTIONS[kind](module.config, device, seq_len=longest, **options)
    module.register_buffer(f"{prefix}inv_freq", frequencies, persistent=False)
    setattr(module, f"{prefix}original_inv_freq", frequencies.clone())
    setattr(module, f"{prefix}attention_scaling", scaling)
    if kind != "longrope":
        return f"{kind} scaling of {max(longest, module.config.max_position_embeddings)} positions"
    settings = module.config.rope_parameters
    limit = (settings if layer is None else settings[layer])["original_max_position_embeddings"]
    return f"longrope's {'long' if longest > limit else 'short'} factors (they change beyond {limit} positions)"
