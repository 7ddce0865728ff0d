"""Context lengths at which a model's computation changes: windows, chunks and index sizes, found by name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from gspo_lightning.policy.attention import windows
from gspo_lightning.policy.policy import Policy

__all__ = ["horizons"]

IN_CONFIG = re.compile(
    r"sliding_window|window_size|attention_window|local_attention|chunk_size|index_topk|indexer_budget"
)
"""Substrings of config field names."""
ANYWHERE = re.compile(r"(window(_size)?|attention_chunk_size|local_attention|index_topk)$")
"""Endings of names of config fields and module attributes; as attributes, shorter names mean other things, too."""


def horizons(policy: Policy) -> list[int]:
    """Return token counts (2 or more, ascending) beyond which a model may attend or carry state differently."""
    config = policy.model.config.get_text_config().to_dict()
    said = [value for name, value in config.items() if IN_CONFIG.search(name) or ANYWHERE.search(name)]
    said += [value for name, value in _attributes(policy) if ANYWHERE.search(name)]
    blocks = config.get("index_topk_blocks"), config.get("index_block_size")
    said += [blocks[0] * blocks[1]] if all(isinstance(b, int) for b in blocks) else []
    return sorted({v for v in (*said, *windows(policy.backbone)) if type(v) is int and v > 1})


def _attributes(policy: Policy) -> Iterator[tuple[str, Any]]:
    for module in policy.backbone.modules():
        yield from vars(module).items()
