"""Advantages: a reward relative to the others of its group, or to a critic's value."""

from __future__ import annotations

from gspo_lightning.loop.advantages.advantages import Advantages
from gspo_lightning.loop.advantages.gae import GAE
from gspo_lightning.loop.advantages.within_groups import (
    BatchNormalised,
    GroupMean,
    GroupNormalised,
    LeaveOneOut,
    MaxRL,
    Raw,
)

__all__ = ["GAE", "Advantages", "BatchNormalised", "GroupMean", "GroupNormalised", "LeaveOneOut", "MaxRL", "Raw"]
