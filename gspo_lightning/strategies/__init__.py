"""Strategies: how the policy is spread over processes."""

from __future__ import annotations

from gspo_lightning.strategies.fsdp import FSDP2Strategy, FSDPStrategy

__all__ = ["FSDP2Strategy", "FSDPStrategy"]
