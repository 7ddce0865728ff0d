"""Base class of collapse signatures, and the history of a run that they compare with."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any, ClassVar, Literal

__all__ = ["KEPT", "History", "Look", "Signature", "reward_share", "rose"]

Scope = Literal["update", "iteration"]
Look = Mapping[str, float]
"""Tag -> value of an update, or of an iteration (means over its updates)."""

KEPT = 8
"""Number of iterations in the median that a run is compared with."""
REMEMBERED = (
    "policy/entropy", "response/length", "response/truncated", "response/repetition", "reward/mean", "reward/std",
    "reward/min", "reward/max",
)  # fmt: skip
START = 2
"""Number of iterations that count as the start of a run."""


@dataclass
class History:
    """Metrics of the healthy iterations of a run; suspicious iterations are not remembered."""

    recent: dict[str, list[float]] = field(default_factory=dict)
    """Tag -> values of the last iterations, at most :data:`KEPT`."""
    first: dict[str, list[float]] = field(default_factory=dict)
    """Tag -> values of the first iterations, at most :data:`START`."""
    lowest_reward: float | None = None
    """The lowest reward of a response (of an iteration's mean if single rewards were not measured)."""
    highest_reward: float | None = None
    best: float | None = None
    """The highest median over three successive iterations' mean rewards."""

    def usual(self, tag: str) -> float | None:
        """Return the median over the last iterations; None if there are fewer than :data:`START`."""
        values = self.recent.get(tag, [])
        return median(values) if len(values) >= START else None

    def start(self, tag: str) -> float | None:
        """Return the mean over the first iterations; None if there are fewer than :data:`START`."""
        values = self.first.get(tag, [])
        return sum(values) / len(values) if len(values) >= START else None

    @property
    def reward_range(self) -> float:
        """The difference between the highest and the lowest reward seen in the run."""
        if self.lowest_reward is None or self.highest_reward is None:
            return 0.0
        return self.highest_reward - self.lowest_reward

    def see_rewards(self, look: Look) -> None:
        """Update the reward extremes, also from suspicious iterations."""
        if (mean := look.get("reward/mean")) is not None:
            low, high = look.get("reward/min", min(mean, 0.0)), look.get("reward/max", mean)
            self.lowest_reward = low if self.lowest_reward is None else min(self.lowest_reward, low)
            self.highest_reward = high if self.highest_reward is None else max(self.highest_reward, high)

    def remember(self, look: Look) -> None:
        """Add a healthy iteration."""
        for tag in REMEMBERED:
            if (value := look.get(tag)) is None:
                continue
            if len(early := self.first.setdefault(tag, [])) < START:
                early.append(value)
            self.recent[tag] = [*self.recent.get(tag, []), value][-KEPT:]
        if len(means := self.recent.get("reward/mean", [])) >= 3:
            level = median(means[-3:])
            self.best = level if self.best is None else max(self.best, level)

    def state_dict(self) -> dict[str, Any]:
        """Return the history as primitives."""
        return {
            "recent": {tag: list(v) for tag, v in self.recent.items()},
            "first": {tag: list(v) for tag, v in self.first.items()},
            "rewards": [self.lowest_reward, self.highest_reward, self.best],
        }

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any]) -> History:
        """Build a history from :meth:`state_dict`."""
        recent, first = ({tag: list(v) for tag, v in state[name].items()} for name in ("recent", "first"))
        return cls(recent, first, *state["rewards"])


@dataclass
class Signature(ABC):
    """Base class of a collapse signature. Fields are thresholds; docs/collapse.md gives their origin."""

    name: ClassVar[str]
    advice: ClassVar[str]
    scope: ClassVar[Scope] = "iteration"
    hits: ClassVar[int] = 2
    """Number of suspicious looks among the last ``window`` that raises the alarm."""
    window: ClassVar[int] = 2

    @abstractmethod
    def suspicious(self, look: Look, history: History) -> str | None:
        """Return a description of what is suspicious about these numbers; None if nothing is."""

    def at_once(self, look: Look) -> bool:
        """True if this one look is enough to raise the alarm."""
        return False


def rose(look: Look, history: History, share: float, *, since_start: bool = False) -> bool:
    """True if the reward rose by more than this share of its range: what looks odd may then be what pays."""
    now = look.get("reward/mean")
    before = history.start("reward/mean") if since_start else history.usual("reward/mean")
    return now is not None and before is not None and now - before > share * history.reward_range


def reward_share(look: Look, history: History) -> float:
    """Return the position of the mean reward between the run's lowest (0) and highest (1); 0 if all were equal."""
    if not history.reward_range or history.lowest_reward is None:
        return 0.0
    return (look.get("reward/mean", history.lowest_reward) - history.lowest_reward) / history.reward_range
