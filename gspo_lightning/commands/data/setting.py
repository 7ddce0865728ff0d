"""What a report is told about records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Setting"]


@dataclass(slots=True)
class Setting:
    """What a config says about the records."""

    columns: Mapping[str, Any]
    rewards: Mapping[str, Any] = field(default_factory=dict)
    tokenizer: Any = None
    limit: int | None = None
    """Tokens of the longest prompt that is trained on."""
