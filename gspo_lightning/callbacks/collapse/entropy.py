"""Entropy: a policy that is certain before it is right, and one that dissolves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gspo_lightning.callbacks.collapse.signature import History, Look, Signature, reward_share, rose

__all__ = ["EntropyCollapse", "EntropyExplosion"]

TAG = "policy/entropy"


@dataclass
class EntropyCollapse(Signature):
    """Entropy falls while the reward does not rise. Falling with a rising reward is how a skill is learned."""

    name: ClassVar[str] = "entropy_collapse"
    advice: ClassVar[str] = "raise clip_high or the temperature, add entropy_coef, or lower the learning rate"
    sudden: float = 0.25
    """Of the median of the last iterations."""
    slow: float = 0.1
    """Of the first iterations."""
    solved: float = 0.9
    """Share of the reward's range from which on certainty is what one wants."""

    def suspicious(self, look: Look, history: History) -> str | None:
        """See the class."""
        now, usual, start = look.get(TAG), history.usual(TAG), history.start(TAG)
        if now is None or usual is None or start is None or reward_share(look, history) >= self.solved:
            return None
        if now < self.sudden * usual and not rose(look, history, 0.1):
            return f"entropy {now:.3g} nats per token, {usual:.3g} before, while the reward does not rise"
        if now < self.slow * start and not rose(look, history, 0.2, since_start=True):
            return f"entropy {now:.3g} nats per token, {start:.3g} at the start, and the reward has not risen since"
        return None


@dataclass
class EntropyExplosion(Signature):
    """Entropy climbs while the reward does not: the policy forgets how to write."""

    name: ClassVar[str] = "entropy_explosion"
    advice: ClassVar[str] = "lower the learning rate or entropy_coef, take fewer updates per rollout, or add a KL term"
    factor: float = 2.5
    """Of the median of the last iterations."""
    least: float = 0.2
    """Nats per token above that median."""

    def suspicious(self, look: Look, history: History) -> str | None:
        """See the class."""
        now, usual = look.get(TAG), history.usual(TAG)
        if now is None or usual is None or now <= max(self.factor * usual, usual + self.least):
            return None
        if rose(look, history, 0.1):
            return None
        return f"entropy {now:.3g} nats per token, {usual:.3g} before, while the reward does not rise"
