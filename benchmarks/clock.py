"""CPU and wall seconds per phase, sides that take turns, medians and spread."""

from __future__ import annotations

import contextlib
import gc
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Phases", "Summary", "alternate", "summarise"]


def _nothing() -> None:
    pass


class Phases:
    """Seconds of one round, in total and by phase.

    ``sync`` waits for the device; a phase on CUDA is measured by the wall, on a CPU by the time of this process.
    """

    def __init__(self, sync: Callable[[], None] = _nothing) -> None:
        self.cpu: dict[str, float] = {}
        self.wall: dict[str, float] = {}
        self._sync = sync

    @contextlib.contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Add what happens inside to the phase ``name``."""
        self._sync()
        cpu, wall = time.process_time(), time.perf_counter()
        try:
            yield
        finally:
            self._sync()
            self.cpu[name] = self.cpu.get(name, 0.0) + time.process_time() - cpu
            self.wall[name] = self.wall.get(name, 0.0) + time.perf_counter() - wall

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """``function``, its time added to the phase ``name``."""

        def run(*args: Any, **kwargs: Any) -> Any:
            with self(name):
                return function(*args, **kwargs)

        return run


@dataclass
class Summary:
    """Median and extremes over rounds, seconds; ``phases`` are medians of CPU seconds (wall seconds on CUDA)."""

    cpu: float
    cpu_low: float
    cpu_high: float
    wall: float
    rounds: int
    phases: dict[str, float] = field(default_factory=dict)


TOTAL = "total"


def alternate(sides: Mapping[str, Callable[[], Phases]], rounds: int) -> dict[str, list[Phases]]:
    """Let the sides take turns for ``rounds`` rounds; the first round is not returned.

    Every other round runs in reversed order, so that no side always follows the other.
    """
    found: dict[str, list[Phases]] = {name: [] for name in sides}
    gc.freeze()  # what exists now is not searched for garbage before each turn
    for turn in range(rounds):
        for name in list(sides) if turn % 2 == 0 else reversed(list(sides)):
            gc.collect()
            found[name].append(sides[name]())
    gc.unfreeze()
    return {name: phases[1:] for name, phases in found.items()}


def summarise(rounds: list[Phases]) -> Summary:
    """Medians and extremes; what no phase covers is ``rest``."""
    totals = [r.cpu[TOTAL] for r in rounds]
    names = [n for n in rounds[0].cpu if n != TOTAL]
    phases = {n: statistics.median(r.cpu.get(n, 0.0) for r in rounds) for n in names}
    phases["rest"] = statistics.median(r.cpu[TOTAL] - sum(r.cpu.get(n, 0.0) for n in names) for r in rounds)
    return Summary(
        cpu=statistics.median(totals),
        cpu_low=min(totals),
        cpu_high=max(totals),
        wall=statistics.median(r.wall[TOTAL] for r in rounds),
        rounds=len(rounds),
        phases=phases,
    )
