"""What a mutant is."""

from __future__ import annotations

import dataclasses

KINDS = ("sign", "min/max", "comparison", "constant", "mask", "stop-gradient")


@dataclasses.dataclass(frozen=True, slots=True)
class Mutant:
    """One changed expression. ``old`` and ``new`` are its lines, without indentation, joined to one."""

    file: str
    line: int
    kind: str
    old: str
    new: str
    source: str = dataclasses.field(repr=False, compare=False)
    statement: int | None = None
    """Line of the statement of a function that holds it; None: it runs when the module is imported."""

    @property
    def key(self) -> str:
        """Stable under everything but a change of the line itself."""
        return f"{self.file}: {self.old} => {self.new}"
