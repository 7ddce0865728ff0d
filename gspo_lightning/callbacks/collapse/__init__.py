"""Collapse signatures, and the watch that looks for them (docs/collapse.md)."""

from gspo_lightning.callbacks.collapse.signature import History, Look, Signature, reward_share, rose
from gspo_lightning.callbacks.collapse.signatures import SIGNATURES
from gspo_lightning.callbacks.collapse.watch import Alarm, Watch

__all__ = ["SIGNATURES", "Alarm", "History", "Look", "Signature", "Watch", "reward_share", "rose"]
