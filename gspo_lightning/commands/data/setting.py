"""Settings about records for a data report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Setting:
    """Settings of a config about records."""

    columns: Mapping[str, Any]
    rewards: Mapping[str, Any] = field(default_factory=dict)
    lengths: Callable[[Sequence[tuple[str, Mapping[str, Any]]]], list[int]] | None = None
    """Counts the tokens of prompts as training sees them, given (place, record) pairs; None without a tokenizer."""
    limit: int | None = None
    """Maximum prompt length in tokens; longer prompts are dropped in training."""
