"""Settings about records for a data report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Setting"]


@dataclass(slots=True)
class Setting:
    """Settings of a config about records."""

    columns: Mapping[str, Any]
    rewards: Mapping[str, Any] = field(default_factory=dict)
    tokenizer: Any = None
    limit: int | None = None
    """Maximum prompt length in tokens; longer prompts are dropped in training."""
