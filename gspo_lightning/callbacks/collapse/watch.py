"""Check every update for collapse signatures, and raise one alarm per signature and episode."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from gspo_lightning.callbacks.collapse.signature import History, Look, Signature

__all__ = ["Alarm", "Watch"]


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
    """The memory of every signature. It is deterministic: the same numbers give the same alarms.

    Args:
        signatures: the signatures to look for.
    """

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
        alarms = [a for s in self.signatures if s.scope == "update" and (a := self._judge(s, look, update, update))]
        for tag, value in look.items():
            if math.isfinite(value):
                total = self._iteration.setdefault(tag, [0.0, 0.0])
                total[0], total[1] = total[0] + value, total[1] + 1
        self._iteration.setdefault("first update", [float(update), 1.0])
        if not last:
            return alarms
        means = {tag: total / count for tag, (total, count) in self._iteration.items()}
        first = int(means.pop("first update"))
        self._iteration = {}
        self.history.see_rewards(means)
        alarms += [a for s in self.signatures if s.scope == "iteration" and (a := self._judge(s, means, update, first))]
        if self.quiet:
            self.history.remember(means)
        return alarms

    def _judge(self, signature: Signature, look: Look, update: int, first: int) -> Alarm | None:
        trail = self._trails[signature.name]
        what = signature.suspicious(look, self.history)
        trail.looks = [*trail.looks, [first, int(what is not None)]][-signature.window :]
        hits = [at for at, flag in trail.looks if flag]
        enough = len(hits) >= signature.hits or (what is not None and signature.at_once(look))
        if trail.raised:
            trail.raised = bool(hits)  # an episode is over when nothing in the window is suspicious
            return None
        if not enough or what is None:
            return None
        trail.raised = True
        return Alarm(signature.name, update, hits[0], what, signature.advice)

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
            trail.looks, trail.raised = [list(look) for look in looks], bool(raised)
