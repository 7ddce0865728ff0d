"""Old policy (the frozen snapshot that samples and that ratios divide by), reference policy and teacher."""

from __future__ import annotations

from gspo_lightning.loop.old_policy.old_policy import OldPolicy
from gspo_lightning.loop.old_policy.snapshots import CachedLogProbs, OffloadedSnapshot, ResidentSnapshot

__all__ = ["CachedLogProbs", "OffloadedSnapshot", "OldPolicy", "ResidentSnapshot"]
