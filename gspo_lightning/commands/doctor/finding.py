"""Findings of ``gspo doctor``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "note", "problem"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One row of a check's table: ``problem`` makes the exit code 1; ``fix`` says what to do about it."""

    state: State
    what: str
    found: str
    fix: str = ""
