"""What a simulated device counts, each with the line of the package that caused it."""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import gspo_lightning

__all__ = ["Counts", "package_line"]

PACKAGE = f"{Path(gspo_lightning.__file__).parent}/"


def package_line() -> str:
    """``room/file.py:line`` of the innermost frame in the package; ``outside`` where there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename.startswith(PACKAGE):
            return f"{frame.f_code.co_filename.removeprefix(PACKAGE)}:{frame.f_lineno}"
        frame = frame.f_back
    return "outside"


@dataclass(slots=True)
class Counts:
    """Of the work since the last :meth:`clear`.

    ``syncs`` counts waits of the host for the device under ``"what line"``; ``copies`` counts transfers between the two
    memories under ``"direction line"``, whether or not the host waits; ``launches`` counts kernels by operator.
    """

    syncs: Counter[str] = field(default_factory=Counter)
    copies: Counter[str] = field(default_factory=Counter)
    launches: Counter[str] = field(default_factory=Counter)
    muted: bool = False

    def sync(self, what: str) -> None:
        """The host waits for the device."""
        if not self.muted:
            self.syncs[f"{what} {package_line()}"] += 1

    def copy(self, direction: str, *, waits: bool) -> None:
        """A transfer: ``to the device`` or ``to the host``."""
        if not self.muted:
            self.copies[f"{direction} {package_line()}"] += 1
            if waits:
                self.sync(f"copy {direction}")

    def launch(self, operator: str) -> None:
        """A kernel."""
        if not self.muted:
            self.launches[operator] += 1

    def clear(self) -> None:
        """Start again from 0."""
        for counter in (self.syncs, self.copies, self.launches):
            counter.clear()

    def taken(self) -> Counts:
        """What was counted; counting starts again from 0."""
        found = Counts(self.syncs.copy(), self.copies.copy(), self.launches.copy())
        self.clear()
        return found

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Nothing counts in here: checks of the benchmark itself."""
        before, self.muted = self.muted, True
        try:
            yield
        finally:
            self.muted = before
