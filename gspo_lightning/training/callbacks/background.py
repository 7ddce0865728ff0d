"""Jobs in a thread beside training, one at a time; of those that wait, only the newest is done."""

from __future__ import annotations

import threading
from collections.abc import Callable

Job = Callable[[], None]


class Background:
    """Runs the newest of the jobs that it is given. A job handles its own errors."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._waiting: tuple[Job, Job] | None = None
        """The next job, and what is called if a newer one takes its place."""

    def submit(self, job: Job, dropped: Job) -> None:
        """Run a job, after the one that runs now.

        Args:
            job: is run in the thread.
            dropped: is called instead if a newer job comes before this one has begun.
        """
        with self._lock:
            if self._waiting is not None:
                self._waiting[1]()
            self._waiting = (job, dropped)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="background", daemon=True)
                self._thread.start()

    def wait(self, seconds: float) -> bool:
        """Wait until nothing runs and nothing waits; return False after ``seconds``."""
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join(seconds)
        return thread is None or not thread.is_alive()

    def drop(self) -> None:
        """Drop the job that waits, if there is one."""
        with self._lock:
            if self._waiting is not None:
                self._waiting[1]()
            self._waiting = None

    def _work(self) -> None:
        while True:
            with self._lock:
                if self._waiting is None:
                    self._thread = None
                    return
                job, _ = self._waiting
                self._waiting = None
            job()
