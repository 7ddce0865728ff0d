"""Asynchronous rollouts: the next rollout batches are made in a thread of their own while the policy is trained.

A job works with a copy of the weights, taken when it is handed in: it never sees a model in the middle of an update,
and what it samples does not depend on when it runs. Where there are several ranks, collectives of a job (a source that
hands weights to servers) go through a process group of their own, and every rank runs the same jobs in the same order.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

import torch.distributed as dist

from gspo_lightning.distributed import another_group, through

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
        self._group: dist.ProcessGroup | None = None

    def take(self, iteration: int, end: int | None, make: Callable[[int], Job[T]]) -> T:
        """The result for an iteration, once it is there; then the jobs that follow are handed in. All ranks together.

        Args:
            iteration: is about to be trained on.
            end: the iteration that will not be; None if nobody knows.
            make: called with the number of an iteration in this thread, returns its job.

        Raises:
            Exception: what the job has raised.
        """
        if iteration not in self._jobs:
            self._hand_in(iteration, make(iteration))
        try:
            result = self._jobs.pop(iteration).result()
        except Exception:
            if self._group is not None:  # ranks that have not failed hand these in and wait for this one in them
                self._hand_in_after(iteration, end, make)
            raise
        self._hand_in_after(iteration, end, make)
        return result

    def at_work(self, iteration: int) -> bool:
        """Whether the job of an iteration was handed in and is not done."""
        return iteration in self._jobs and not self._jobs[iteration].done()

    def settle(self) -> None:
        """Wait until nothing is going on: only then may another thread ask the source.

        What two threads ask in turn would be in another order on every rank, and so would its collectives.
        """
        if self._worker is not None:
            self._worker.join()

    def close(self) -> None:
        """End what is going on; what was handed in is lost. Of several ranks each gets as far as its next check."""
        self._stop.set()
        self.settle()
        self._worker, self._jobs = None, {}
        self._stop.clear()
        if self._group is not None and dist.is_initialized():
            dist.destroy_process_group(self._group)
        self._group = None

    def _hand_in_after(self, iteration: int, end: int | None, make: Callable[[int], Job[T]]) -> None:
        for later in range(iteration + 1, iteration + self.iterations + 1):
            if later not in self._jobs and (end is None or later < end):
                self._hand_in(later, make(later))

    def _hand_in(self, iteration: int, job: Job[T]) -> None:
        future: Future[T] = Future()
        self._jobs[iteration] = future
        before = self._worker
        if self._group is None:
            self._group = another_group()
        group = self._group

        def work() -> None:
            if before is not None:
                before.join()  # in order, one at a time
            try:
                if group is None:  # else another rank may be in a collective of this job already
                    self._check()
                with through(group):
                    future.set_result(job(self._check))
            except BaseException as error:  # reaches the one who waits for the result
                future.set_exception(error)

        self._worker = threading.Thread(target=work, name=f"rollouts-{iteration}", daemon=True)
        self._worker.start()

    def _check(self) -> None:
        if self._stop.is_set():
            raise CancelledError
