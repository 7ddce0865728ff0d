"""What the entry point ``inspect_ai`` loads: everything here is registered by being imported."""

from __future__ import annotations

from gspo_lightning.inspect.provider import gspo
from gspo_lightning.inspect.scorer import reward_scorer

__all__ = ["gspo", "reward_scorer"]
