"""Collapse signatures, and the watch that looks for them (docs/collapse.md)."""

from gspo_lightning.report.collapse.signatures import SIGNATURES
from gspo_lightning.report.collapse.watch import (
    Alarm,
    History,
    Look,
    Signature,
    Watch,
    reward_share,
    rose,
)

__all__ = ["SIGNATURES", "Alarm", "History", "Look", "Signature", "Watch", "reward_share", "rose"]
