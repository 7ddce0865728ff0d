"""One line of what the doctor has found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Finding", "State"]

State = Literal["ok", "note", "problem"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: ``problem`` makes the exit code 1; ``fix`` is what to do about it."""

    state: State
    what: str
    found: str
    fix: str = ""
