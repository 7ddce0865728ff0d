"""Base class of collapse signatures, the history that they compare with, and the watch that raises their alarms."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from statistics import median
from types import MappingProxyType
from typing import Any, ClassVar, Literal, NamedTuple

from gspo_lightning.core.metric_table.spec import RULES

Scope = Literal["update", "iteration", "evaluation"]
Look = Mapping[str, float]
"""Tag -> value of an update, of an iteration (means over its updates), or of an evaluation."""

KEPT = 8
"""Number of iterations in the median that a run is compared with."""
REMEMBERED = (
    "policy/entropy", "response/length", "response/truncated", "response/repetition", "reward/mean", "reward/std",
    "reward/min", "reward/max",
)  # fmt: skip
START = 2
"""Number of iterations that count as the start of a run."""


class BestEvaluation(NamedTuple):
    """The evaluation with the highest held-out accuracy, the later one of equals."""

    accuracy: float
    error: float
    """Standard error of the accuracy."""
    updates: int
    """Number of updates before it."""
    scores: Mapping[int, float] = MappingProxyType({})
    """Prompt -> share of its answers that were right; empty if it is not known."""


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
    best_held_out: BestEvaluation | None = None
    held_out_scores: Mapping[int, float] = field(default_factory=dict)
    """Prompt -> share of its right answers, of the evaluation that is being judged; empty if it is not known."""

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

    @property
    def begun(self) -> bool:
        """True from the second iteration on: a new optimizer moves a policy far in its first steps."""
        return self.lowest_reward is not None

    def see_rewards(self, look: Look) -> None:
        """Update the reward extremes, also from suspicious iterations."""
        mean = look.get("reward/mean")
        if mean is None:
            return
        low = look.get("reward/min", min(mean, 0.0))
        high = look.get("reward/max", mean)
        self.lowest_reward = low if self.lowest_reward is None else min(self.lowest_reward, low)
        self.highest_reward = high if self.highest_reward is None else max(self.highest_reward, high)

    def see_held_out(self, look: Look, updates: int) -> None:
        """Update the best held-out accuracy; the later one of equals counts."""
        error = look["val/accuracy_standard_error"]
        now = BestEvaluation(look["val/accuracy"], error, updates, self.held_out_scores)
        if self.best_held_out is None or now.accuracy >= self.best_held_out.accuracy:
            self.best_held_out = now

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
        best = self.best_held_out
        return {
            "recent": {tag: list(v) for tag, v in self.recent.items()},
            "first": {tag: list(v) for tag, v in self.first.items()},
            "rewards": [self.lowest_reward, self.highest_reward, self.best],
            "best_held_out": None if best is None else [*best[:3], [list(pair) for pair in best.scores.items()]],
        }

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any]) -> History:
        """Build a history from :meth:`state_dict`."""
        recent, first = ({tag: list(v) for tag, v in state[name].items()} for name in ("recent", "first"))
        lowest, highest, best = state["rewards"]
        if (held_out := state["best_held_out"]) is None:
            return cls(recent, first, lowest, highest, best)
        scores = dict(held_out[3]) if len(held_out) > 3 else {}  # older checkpoints have none
        accuracy, error, updates = held_out[:3]
        return cls(recent, first, lowest, highest, best, BestEvaluation(accuracy, error, updates, scores))


@dataclass
class Signature(ABC):
    """Base class of a collapse signature. Fields are thresholds; docs/collapse.md gives their origin."""

    name: ClassVar[str]
    advice: ClassVar[str]
    scope: ClassVar[Scope] = "iteration"
    hits: ClassVar[int] = 2
    """Number of suspicious looks among the last ``window`` that raises the alarm."""
    window: ClassVar[int] = 2

    def __init_subclass__(cls) -> None:
        """Take the number of looks from the definitions of the metrics, if they have this signature."""
        rule = RULES.get(getattr(cls, "name", ""))
        if rule is not None and rule.hits is not None and rule.window is not None and "hits" not in cls.__dict__:
            cls.hits = rule.hits
            cls.window = rule.window

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


@dataclass
class Alarm:
    """A collapse signature that was recognised."""

    signature: str
    update: int
    """The update at which it was recognised, from 1."""
    since: int
    """The first suspicious update."""
    what: str
    """A description of what was seen, with numbers."""
    advice: str
    action: str = "warned"
    """The action taken."""
    dump: str = ""
    """Path of the dumped batch, relative to the run folder; empty if it was not written."""

    def state_dict(self) -> dict[str, Any]:
        """Return the alarm as primitives."""
        return asdict(self)


@dataclass
class _Trail:
    """The last looks of one signature."""

    looks: list[list[int]] = field(default_factory=list)
    """The last ``window`` looks as [update, 1 if suspicious]."""
    raised: bool = False


class Watch:
    """The memory of every signature. It is deterministic: the same numbers give the same alarms."""

    def __init__(self, signatures: Iterable[Signature]) -> None:
        self.signatures = list(signatures)
        self.history = History()
        self._trails = {s.name: _Trail() for s in self.signatures}
        self._iteration: dict[str, list[float]] = {}

    @property
    def present(self) -> list[str]:
        """Names of signatures that were recognised and have not gone away."""
        return [name for name, trail in self._trails.items() if trail.raised]

    @property
    def quiet(self) -> bool:
        """True if no signature has a suspicious look in its window."""
        return not any(flag for trail in self._trails.values() for _, flag in trail.looks)

    def see(self, look: Look, update: int, *, last: bool) -> list[Alarm]:
        """Return the alarms that this update raises.

        Args:
            look: metrics of the update.
            update: its number, from 1.
            last: True for the last update of an iteration; iteration signatures then check the means over its updates.
        """
        alarms = self._judge_all("update", look, update, update)
        for tag, value in look.items():
            if math.isfinite(value):
                sum_and_count = self._iteration.setdefault(tag, [0.0, 0.0])
                sum_and_count[0] += value
                sum_and_count[1] += 1
        self._iteration.setdefault("first update", [float(update), 1.0])
        if not last:
            return alarms
        means = {tag: total / count for tag, (total, count) in self._iteration.items()}
        first = int(means.pop("first update"))
        self._iteration = {}
        self.history.see_rewards(means)
        alarms += self._judge_all("iteration", means, update, first)
        if self.quiet:
            self.history.remember(means)
        return alarms

    def see_evaluation(self, look: Look, updates: int, scores: Mapping[int, float] | None = None) -> list[Alarm]:
        """Return the alarms that an evaluation raises; what it is compared with lies before the best one.

        Args:
            look: metrics of the evaluation, with ``val/accuracy`` and ``val/accuracy_standard_error``.
            updates: number of updates before it.
            scores: prompt -> share of its answers that were right; None if it is not known.
        """
        self.history.held_out_scores = {} if scores is None else dict(scores)
        best = self.history.best_held_out
        first = updates if best is None else best.updates + 1
        alarms = self._judge_all("evaluation", look, updates, first)
        self.history.see_held_out(look, updates)
        return alarms

    def _judge_all(self, scope: Scope, look: Look, update: int, first: int) -> list[Alarm]:
        """Return the alarms of all signatures of a scope; ``first`` is the first update that the look is about."""
        alarms = []
        for signature in self.signatures:
            if signature.scope == scope:
                alarm = self._judge(signature, look, update, first)
                if alarm is not None:
                    alarms.append(alarm)
        return alarms

    def _judge(self, signature: Signature, look: Look, update: int, first: int) -> Alarm | None:
        trail = self._trails[signature.name]
        suspicion = signature.suspicious(look, self.history)
        trail.looks = [*trail.looks, [first, int(suspicion is not None)]][-signature.window :]
        hits = [at for at, flag in trail.looks if flag]
        enough = len(hits) >= signature.hits or (suspicion is not None and signature.at_once(look))
        if trail.raised:
            trail.raised = bool(hits)  # an episode is over when nothing in the window is suspicious
            return None
        if not enough or suspicion is None:
            return None
        trail.raised = True
        return Alarm(signature.name, update, hits[0], suspicion, signature.advice)

    def state_dict(self) -> dict[str, Any]:
        """Return the state as primitives."""
        return {
            "history": self.history.state_dict(),
            "trails": {name: [trail.looks, trail.raised] for name, trail in self._trails.items()},
            "iteration": {tag: list(pair) for tag, pair in self._iteration.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state; signatures that it does not contain start afresh."""
        self.history = History.from_state_dict(state["history"])
        self._iteration = {tag: list(pair) for tag, pair in state["iteration"].items()}
        for name, trail in self._trails.items():
            looks, raised = state["trails"].get(name, ([], False))
            trail.looks = [list(look) for look in looks]
            trail.raised = bool(raised)
