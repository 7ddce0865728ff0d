"""Busy time of a server."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

__all__ = ["Occupancy"]


class Occupancy:
    """Wall time with requests in flight. Safe to call from several threads.

    Args:
        clock: returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._requests = 0
        self._busy_s = 0.0
        self._counted = 0.0
        """Time up to which ``_busy_s`` is counted."""
        self._start: float | None = None
        """Start of the measured time; None before the first request."""

    def begin(self) -> None:
        """Count a request as sent."""
        with self._lock:
            self._count()
            self._requests += 1

    def end(self) -> None:
        """Count a request as answered or given up."""
        with self._lock:
            self._count()
            self._requests -= 1

    def idle_share(self) -> float:
        """Return the share of time without any request, since the last call; at first, since the first request."""
        with self._lock:
            if self._start is None:
                return 1.0
            self._count()
            passed = self._counted - self._start
            idle = 1.0 - self._busy_s / passed if passed > 0 else 0.0
            self._start, self._busy_s = self._counted, 0.0
            return min(max(idle, 0.0), 1.0)

    def _count(self) -> None:
        now = self._clock()
        if self._start is None:
            self._start = now
        elif self._requests:
            self._busy_s += now - self._counted
        self._counted = now
