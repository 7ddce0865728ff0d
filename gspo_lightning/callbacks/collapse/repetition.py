"""Repetition: a policy that says the same again and again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gspo_lightning.callbacks.collapse.signature import History, Look, Signature

__all__ = ["Repetition"]


@dataclass
class Repetition(Signature):
    """A large share of 4-grams occurred before in the same response, much larger than before in the run."""

    name: ClassVar[str] = "repetition"
    advice: ClassVar[str] = "read samples: the reward pays for length or format, or the end token is no longer written"
    level: float = 0.3
    """Fraction of 4-grams ..."""
    more: float = 0.2
    """... if that is so much more than before."""

    def suspicious(self, look: Look, history: History) -> str | None:
        """See the class."""
        now, usual = look.get("response/repetition"), history.usual("response/repetition")
        if now is None or usual is None or now <= max(self.level, usual + self.more):
            return None
        return f"{100 * now:.0f}% of 4-grams are repeated within a response, {100 * usual:.0f}% before"
