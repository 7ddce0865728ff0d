"""Strategies: how the policy is spread over processes."""

from __future__ import annotations

from gspo_lightning.strategies.fsdp import FSDPStrategy
from gspo_lightning.strategies.fsdp2 import FSDP2Strategy

__all__ = ["FSDP2Strategy", "FSDPStrategy"]
