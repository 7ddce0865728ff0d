"""Collapse signatures, and the watch that looks for them (docs/collapse.md)."""

from gspo_lightning.training.callbacks.collapse.signature import (
    Alarm,
    History,
    Look,
    Signature,
    Watch,
    reward_share,
    rose,
)
from gspo_lightning.training.callbacks.collapse.signatures import SIGNATURES

__all__ = ["SIGNATURES", "Alarm", "History", "Look", "Signature", "Watch", "reward_share", "rose"]
