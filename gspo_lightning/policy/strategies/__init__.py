"""Strategies: distribution of the policy over processes."""

from __future__ import annotations

from gspo_lightning.policy.strategies.fsdp import FSDP2Strategy, FSDPStrategy
from gspo_lightning.policy.strategies.sharding_strategy import (
    Sharding,
    ddp_of,
    has_whole_weights,
    no_backward_sync,
    sharding_of,
)

__all__ = [
    "FSDP2Strategy",
    "FSDPStrategy",
    "Sharding",
    "ddp_of",
    "has_whole_weights",
    "no_backward_sync",
    "sharding_of",
]
