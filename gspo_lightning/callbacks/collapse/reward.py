"""Reward: what was learned is lost, or no group has anything left to compare."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gspo_lightning.callbacks.collapse.signature import History, Look, Signature, reward_share

__all__ = ["DeadGroupFlood", "RewardCollapse"]


@dataclass
class RewardCollapse(Signature):
    """The mean reward falls back by half of what lies between the lowest reward and the best iterations."""

    name: ClassVar[str] = "reward_collapse"
    advice: ClassVar[str] = "go back to a checkpoint from before it and lower the learning rate; read samples first"
    fall: float = 0.5
    """Share of the way from the lowest reward of the run to its best level."""
    errors: float = 4.0
    """Standard errors that the fall must be beyond what the choice of prompts explains."""
    prompts: int = 32
    """Prompts per iteration; set by the callback."""

    def suspicious(self, look: Look, history: History) -> str | None:
        """See the class."""
        now, best, lowest = look.get("reward/mean"), history.best, history.lowest_reward
        if now is None or best is None or lowest is None or best <= lowest:
            return None
        noise = max(history.recent.get("reward/std", [0.0])) / self.prompts**0.5
        if best - now > max(self.fall * (best - lowest), self.errors * noise):
            return f"mean reward {now:.3g}, {best:.3g} at its best"
        return None


@dataclass
class DeadGroupFlood(Signature):
    """Nearly all groups have equal rewards, and not because the prompts are solved."""

    name: ClassVar[str] = "dead_group_flood"
    advice: ClassVar[str] = "use easier prompts, larger groups, a finer reward, or data.resample_dead_groups"
    hits: ClassVar[int] = 3
    window: ClassVar[int] = 3
    dead: float = 0.9
    """Fraction of groups."""
    solved: float = 0.7
    """Share of the reward's range from which on equal rewards are success."""

    def suspicious(self, look: Look, history: History) -> str | None:
        """See the class."""
        dead = look.get("reward/dead_groups", 0.0)
        if dead < self.dead or reward_share(look, history) >= self.solved:
            return None
        return f"{100 * dead:.0f}% of groups have equal rewards at a mean reward of {look.get('reward/mean', 0.0):.3g}"
