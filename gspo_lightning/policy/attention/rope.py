"""Pin rotary embeddings whose frequencies depend on the longest row of a call to one choice for a whole run.

longrope (Phi-3, Phi-4-mini) and dynamic NTK scaling choose the frequencies of all rows of a *call* by its longest
position. A row would then have other log-probabilities in another micro-batch, and others in the sampler, where
cached keys keep the frequencies they were made with.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

from torch import nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

log = logging.getLogger(__name__)

PINNED = "pinned"
"""Replaces the type of a rotary embedding: transformers leaves an unknown type alone."""


def pin_rope(model: nn.Module, longest: int) -> str | None:
    """Make every call use the frequencies of the longest possible row; the model's config does not change.

    Args:
        model: with rotary embeddings of transformers, or without any.
        longest: largest number of tokens of a row of this run.

    Returns:
        Description of the choice; None if nothing depends on the length of a call.
    """
    descriptions = [_pin(module, longest) for module in model.modules() if hasattr(module, "rope_type")]
    description = next((words for words in descriptions if words), None)
    if description is not None:
        log.info("rotary embeddings: %s, because rows may have up to %d tokens; one choice for the whole run",
                 description, longest)  # fmt: skip
    return description


def follows_length(config: PretrainedConfig) -> bool:
    """True if a model of this config has rotary embeddings that depend on the longest row of a call."""
    settings = getattr(config.get_text_config(), "rope_parameters", None) or {}
    return any(_depends(part.get("rope_type")) for part in (settings, *settings.values()) if isinstance(part, dict))


@contextlib.contextmanager
def never_switching(model: PreTrainedModel) -> Iterator[None]:
    """Make ``model.generate`` keep its cache inside the context, if rotary embeddings are pinned.

    Phi-3 drops it behind the last position of the short factors, whatever the factors are.
    """
    config = model.config
    name = "original_max_position_embeddings"
    limit = vars(config).get(name)
    if limit is None or not any(getattr(m, "rope_type", None) == PINNED for m in model.modules()):
        yield
        return
    setattr(config, name, 1 << 30)
    try:
        yield
    finally:
        setattr(config, name, limit)


def _pin(module: Any, longest: int) -> str | None:
    kinds = module.unpinned = getattr(module, "unpinned", module.rope_type)  # may be pinned again, for other rows
    if isinstance(kinds, str):
        if not _depends(kinds):
            return None
        module.rope_type = PINNED
        return _set(module, kinds, longest, None)
    descriptions = [_set(module, kind, longest, layer) for layer, kind in kinds.items() if _depends(kind)]
    module.rope_type = {layer: PINNED if _depends(kind) else kind for layer, kind in kinds.items()}
    return descriptions[0] if descriptions else None


def _depends(kind: Any) -> bool:
    """True for the types that transformers' ``dynamic_rope_update`` changes."""
    return isinstance(kind, str) and ("dynamic" in kind or kind == "longrope")


def _set(module: Any, kind: str, longest: int, layer: str | None) -> str:
    """Set the frequencies of rows of ``longest`` tokens permanently; return their description."""
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
