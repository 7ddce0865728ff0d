"""Asynchronous rollouts: the next rollout batches are made in a thread of their own while the policy is trained.

A job works with a copy of the weights, taken when it is handed in: it never sees a model in the middle of an update,
and what it samples does not depend on when it runs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

__all__ = ["CancelledError", "Job", "RolloutPrefetcher"]

T = TypeVar("T")
Job = Callable[[Callable[[], None]], T]
"""Does the work of an iteration; calls what it is given now and then, which ends it by an exception if need be."""


class CancelledError(Exception):
    """Nobody waits for this job any more."""


class RolloutPrefetcher(Generic[T]):
    """Jobs of coming iterations, done one after another.

    Args:
        iterations: how many are handed in ahead of the one that is trained on; their weights are that many old.
    """

    def __init__(self, iterations: int) -> None:
        self.iterations = iterations
        self._jobs: dict[int, Future[T]] = {}
        self._worker: threading.Thread | None = None
        self._stop = threading.Event()

    def take(self, iteration: int, end: int | None, make: Callable[[int], Job[T]]) -> T:
        """The result for an iteration, once it is there; then the jobs that follow are handed in.

        Args:
            iteration: is about to be trained on.
            end: the iteration that will not be; None if nobody knows.
            make: called with the number of an iteration in this thread, returns its job.

        Raises:
            Exception: what the job has raised.
        """
        if iteration not in self._jobs:
            self._hand_in(iteration, make(iteration))
        result = self._jobs.pop(iteration).result()
        for later in range(iteration + 1, iteration + self.iterations + 1):
            if later not in self._jobs and (end is None or later < end):
                self._hand_in(later, make(later))
        return result

    def close(self) -> None:
        """End what is going on; what was handed in is lost."""
        self._stop.set()
        if self._worker is not None:
            self._worker.join()
        self._worker, self._jobs = None, {}
        self._stop.clear()

    def _hand_in(self, iteration: int, job: Job[T]) -> None:
        future: Future[T] = Future()
        self._jobs[iteration] = future
        before = self._worker

        def work() -> None:
            if before is not None:
                before.join()  # in order, one at a time
            try:
                self._check()
                future.set_result(job(self._check))
            except BaseException as error:  # reaches the one who waits for the result
                future.set_exception(error)

        self._worker = threading.Thread(target=work, name=f"rollouts-{iteration}", daemon=True)
        self._worker.start()

    def _check(self) -> None:
        if self._stop.is_set():
            raise CancelledError
