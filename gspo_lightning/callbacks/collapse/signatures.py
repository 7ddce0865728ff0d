"""All of them, in the order in which they are looked for."""

from __future__ import annotations

from gspo_lightning.callbacks.collapse.entropy import EntropyCollapse, EntropyExplosion
from gspo_lightning.callbacks.collapse.gradients import GradientSpikes, NonFinite
from gspo_lightning.callbacks.collapse.length import LengthCollapse, LengthRunaway
from gspo_lightning.callbacks.collapse.ratio import RatioExplosion
from gspo_lightning.callbacks.collapse.repetition import Repetition
from gspo_lightning.callbacks.collapse.reward import DeadGroupFlood, RewardCollapse
from gspo_lightning.callbacks.collapse.signature import Signature

__all__ = ["SIGNATURES"]

SIGNATURES: dict[str, type[Signature]] = {
    kind.name: kind
    for kind in (
        NonFinite, GradientSpikes, RatioExplosion, RewardCollapse, EntropyCollapse, EntropyExplosion, LengthCollapse,
        LengthRunaway, Repetition, DeadGroupFlood,
    )
}  # fmt: skip
"""Name -> class."""
