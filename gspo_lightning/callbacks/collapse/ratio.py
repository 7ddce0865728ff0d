"""Ratios: a policy that leaves its own samples within an iteration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gspo_lightning.callbacks.collapse.signature import History, Look, Signature

__all__ = ["RatioExplosion"]


@dataclass
class RatioExplosion(Signature):
    """Ratios to the old policy spread far beyond anything that clipping is meant for."""

    name: ClassVar[str] = "ratio_explosion"
    advice: ClassVar[str] = "lower the learning rate or minibatches_per_rollout; look at optim/gradient_norm before it"
    scope = "update"
    hits: ClassVar[int] = 2
    window: ClassVar[int] = 8
    spread: float = 0.25
    """Standard deviation of log s_i over sequences, nats per token."""
    effective: float = 0.5
    """Effective sample size, as a fraction of the samples."""

    def suspicious(self, look: Look, history: History) -> str | None:
        """See the class."""
        spread = look.get("ratio/log_sequence_std", 0.0)
        if spread > self.spread:
            return f"log s_i spreads by {spread:.3g} nats per token over sequences"
        effective = look.get("ratio/effective_sample_size", 1.0)
        if 0 < effective < self.effective:
            return f"the effective sample size is {100 * effective:.0f}% of the samples"
        if (clamped := look.get("ratio/clamped", 0.0)) > 0:
            return f"{100 * clamped:.2g}% of ratios are beyond e^20"
        return None
