"""Length: responses that shrink to nothing or run to the limit without being worth more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gspo_lightning.callbacks.collapse.signature import History, Look, Signature, rose

__all__ = ["LengthCollapse", "LengthRunaway"]


@dataclass
class LengthCollapse(Signature):
    """Responses shrink while the reward does not rise."""

    name: ClassVar[str] = "length_collapse"
    advice: ClassVar[str] = "look at samples: what short answer is being paid for? lower its reward part"
    factor: float = 0.4
    """Of the median of the last iterations."""

    def suspicious(self, look: Look, history: History) -> str | None:
        """See the class."""
        now, usual = look.get("response/length"), history.usual("response/length")
        if now is None or usual is None or now >= self.factor * usual or rose(look, history, 0.1):
            return None
        return f"{now:.1f} tokens per response, {usual:.1f} before, while the reward does not rise"


@dataclass
class LengthRunaway(Signature):
    """Responses grow, or are cut, while the reward does not rise. Growing with it is how thinking is learned."""

    name: ClassVar[str] = "length_runaway"
    advice: ClassVar[str] = "look at samples for rambling; use truncated_responses: mask or penalise"
    factor: float = 2.0
    """Of the median of the last iterations."""
    cut: float = 0.5
    """Fraction of responses that reach the limit ..."""
    cut_more: float = 0.3
    """... if that is so much more than before."""

    def suspicious(self, look: Look, history: History) -> str | None:
        """See the class."""
        if rose(look, history, 0.1):
            return None
        now, usual = look.get("response/length"), history.usual("response/length")
        if now is not None and usual is not None and now > self.factor * usual:
            return f"{now:.1f} tokens per response, {usual:.1f} before, while the reward does not rise"
        cut, before = look.get("response/truncated"), history.usual("response/truncated")
        if cut is not None and before is not None and cut > max(self.cut, before + self.cut_more):
            return f"{100 * cut:.0f}% of responses are cut, {100 * before:.0f}% before"
        return None
