"""Entry point ``inspect_ai``: importing this module registers the model provider and the scorer."""

from __future__ import annotations

from gspo_lightning.commands.inspect.provider import gspo as gspo
from gspo_lightning.commands.inspect.scorer import reward_scorer as reward_scorer
