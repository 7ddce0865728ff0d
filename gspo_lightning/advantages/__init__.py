"""Advantages: what a reward is worth beside the other rewards of its group."""

from __future__ import annotations

from gspo_lightning.advantages.base import Advantages
from gspo_lightning.advantages.within_groups import BatchNormalised, GroupMean, GroupNormalised, LeaveOneOut, MaxRL, Raw

__all__ = ["Advantages", "BatchNormalised", "GroupMean", "GroupNormalised", "LeaveOneOut", "MaxRL", "Raw"]
