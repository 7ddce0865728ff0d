"""Looks at every update, counts what is suspicious, and raises an alarm once per signature and episode."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from gspo_lightning.callbacks.collapse.signature import History, Look, Signature

__all__ = ["Alarm", "Watch"]


@dataclass
class Alarm:
    """A signature that was recognised."""

    signature: str
    update: int
    """The update at which it was recognised, from 1."""
    since: int
    """The first update that looked like it."""
    what: str
    """What was seen, in words and numbers."""
    advice: str
    action: str = "warned"
    """What was done about it."""
    dump: str = ""
    """Where the batch was written, relative to the run folder; empty where it was not."""

    def state_dict(self) -> dict[str, Any]:
        """Primitives only."""
        return asdict(self)


@dataclass
class _Trail:
    """The suspicious looks of one signature among its last ones."""

    looks: list[list[int]] = field(default_factory=list)
    """[update, 1 if suspicious], the last ``window``."""
    raised: bool = False


class Watch:
    """Every signature's memory. The same numbers give the same alarms: state is plain, nothing is random.

    Args:
        signatures: what to look for.
    """

    def __init__(self, signatures: Iterable[Signature]) -> None:
        self.signatures = list(signatures)
        self.history = History()
        self._trails = {s.name: _Trail() for s in self.signatures}
        self._iteration: dict[str, list[float]] = {}

    @property
    def present(self) -> list[str]:
        """Signatures that were recognised and have not gone away."""
        return [name for name, trail in self._trails.items() if trail.raised]

    @property
    def quiet(self) -> bool:
        """Whether nothing at all is suspicious."""
        return not any(flag for trail in self._trails.values() for _, flag in trail.looks)

    def see(self, look: Look, update: int, *, last: bool) -> list[Alarm]:
        """The alarms that this update raises.

        Args:
            look: what was measured of it.
            update: its number, from 1.
            last: whether it is the last one of its iteration; iterations are then judged by the means over their
                updates.
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
        """Primitives only."""
        return {
            "history": self.history.state_dict(),
            "trails": {name: [trail.looks, trail.raised] for name, trail in self._trails.items()},
            "iteration": {tag: list(pair) for tag, pair in self._iteration.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of :meth:`state_dict`; signatures that the state does not know start afresh."""
        self.history = History.from_state_dict(state["history"])
        self._iteration = {tag: list(pair) for tag, pair in state["iteration"].items()}
        for name, trail in self._trails.items():
            looks, raised = state["trails"].get(name, ([], False))
            trail.looks, trail.raised = [list(look) for look in looks], bool(raised)
