"""Gradients: norms far beyond the usual, and numbers that are none."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from gspo_lightning.callbacks.collapse.signature import History, Look, Signature

__all__ = ["GradientSpikes", "NonFinite"]


@dataclass
class GradientSpikes(Signature):
    """Gradient norms, before clipping, that are many times their median: a few in a row, or a single huge one.

    Single spikes of up to 30 times the median are seen in healthy runs, where most of a batch has nothing to teach.
    """

    name: ClassVar[str] = "gradient_spikes"
    advice: ClassVar[str] = "lower the learning rate, use a sequence-level ratio; clipping hides spikes, it is no cure"
    scope = "update"
    hits: ClassVar[int] = 3
    window: ClassVar[int] = 8
    factor: float = 10.0
    """Of the median of the 64 norms before."""
    huge: float = 100.0
    """One is enough."""

    def suspicious(self, look: Look, history: History) -> str | None:
        """See the class."""
        spike = look.get("optim/gradient_spike", 1.0)
        if spike <= self.factor:
            return None
        return f"gradient norm {look.get('optim/gradient_norm', math.nan):.3g}, {spike:.0f} times its median"

    def at_once(self, look: Look) -> bool:
        """A huge one."""
        return look.get("optim/gradient_spike", 1.0) > self.huge


@dataclass
class NonFinite(Signature):
    """A NaN or infinity in what was measured. Whether the update is skipped is model.on_nonfinite's choice."""

    name: ClassVar[str] = "non_finite"
    advice: ClassVar[str] = "gspo replay names the row and the tensor; lower the learning rate, check the reward"
    scope = "update"
    hits: ClassVar[int] = 1
    window: ClassVar[int] = 1

    def suspicious(self, look: Look, history: History) -> str | None:
        """See the class."""
        bad = sorted(tag for tag, value in look.items() if not math.isfinite(value))
        return f"{', '.join(bad[:3])} not finite" if bad else None
