"""Strategies: distribution of the policy over processes."""

from __future__ import annotations

from gspo_lightning.strategies.base import Sharding, ddp_of, has_whole_weights, no_backward_sync, sharding_of
from gspo_lightning.strategies.fsdp import FSDPStrategy
from gspo_lightning.strategies.fsdp2 import FSDP2Strategy

__all__ = [
    "FSDP2Strategy",
    "FSDPStrategy",
    "Sharding",
    "ddp_of",
    "has_whole_weights",
    "no_backward_sync",
    "sharding_of",
]
