"""Asynchronous rollouts: a separate thread samples the next rollout batches while the policy is trained.

A job works with a copy of the weights, taken at submission: it never sees a model in the middle of an update,
and its samples do not depend on when it runs. With several ranks, collectives of a job (a source that
sends weights to servers) use a process group of their own, and every rank runs the same jobs in the same order.
No rank can copy sharded weights: they are sent to servers at submission, by all ranks together, and a job only sends
requests.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

import torch.distributed as dist

from gspo_lightning.core.distributed import another_group, fail_together, rank_and_world, through
from gspo_lightning.core.errors import InfrastructureError

T = TypeVar("T")
Job = Callable[[Callable[[], None]], T]
"""Work of one iteration; it calls its argument now and then, which raises to cancel the job."""


class CancelledError(Exception):
    """Cancellation of a job whose result is no longer needed."""


class RolloutPrefetcher(Generic[T]):
    """Queue of the jobs of coming iterations, run one after another.

    Args:
        iterations: jobs submitted ahead of the iteration being trained on; the age of their weights in iterations.
    """

    def __init__(self, iterations: int) -> None:
        self.iterations = iterations
        self._jobs: dict[int, Future[T]] = {}
        self._worker: threading.Thread | None = None
        self._stop = threading.Event()
        self._group: dist.ProcessGroup | None = None

    def take(self, iteration: int, end: int | None, make: Callable[[int], Job[T]], *, together: bool = False) -> T:
        """Wait for the result of an iteration, then submit the jobs that follow; called on all ranks together.

        Args:
            iteration: iteration that is about to be trained on.
            end: first iteration that will not run; None if unknown.
            make: called in this thread with the number of an iteration, returns its job.
            together: collectives are in ``make`` and not in its jobs: an error of one rank's job ends all ranks before
                the next job is made.

        Raises:
            Exception: raised by the job.
        """
        if iteration not in self._jobs:
            self._hand_in(iteration, make(iteration))
        if together:
            with fail_together():
                result = self._named(iteration)
            self._hand_in_after(iteration, end, make)
            return result
        try:
            result = self._jobs.pop(iteration).result()
        except Exception:
            if self._group is not None:  # other ranks submit these jobs, and wait for this rank in them
                self._hand_in_after(iteration, end, make)
            raise
        self._hand_in_after(iteration, end, make)
        return result

    def at_work(self, iteration: int) -> bool:
        """True if the job of an iteration was submitted and is not done."""
        return iteration in self._jobs and not self._jobs[iteration].done()

    def settle(self) -> None:
        """Wait until no job is running: only then may another thread use the source.

        Calls from two threads would interleave differently on every rank, and so would their collectives.
        """
        if self._worker is not None:
            self._worker.join()

    def close(self) -> None:
        """Cancel running and pending jobs. With several ranks, each rank stops at its own next check."""
        self._stop.set()
        self.settle()
        self._worker = None
        self._jobs = {}
        self._stop.clear()
        if self._group is not None and dist.is_initialized():
            dist.destroy_process_group(self._group)
        self._group = None

    def _named(self, iteration: int) -> T:
        """Return the result of a job; its error names this rank, for the log of the others."""
        try:
            return self._jobs.pop(iteration).result()
        except InfrastructureError as error:
            where = f"rank {rank_and_world()[0]}, rollouts of iteration {iteration}"
            raise InfrastructureError(f"{where}: {error}") from error

    def _hand_in_after(self, iteration: int, end: int | None, make: Callable[[int], Job[T]]) -> None:
        for later in range(iteration + 1, iteration + self.iterations + 1):
            if later not in self._jobs and (end is None or later < end):
                self._hand_in(later, make(later))

    def _hand_in(self, iteration: int, job: Job[T]) -> None:
        future: Future[T] = Future()
        self._jobs[iteration] = future
        previous = self._worker
        if self._group is None:
            self._group = another_group()
        group = self._group

        def work() -> None:
            if previous is not None:
                previous.join()  # in order, one at a time
            try:
                if group is None:  # else another rank may already be in a collective of this job
                    self._check()
                with through(group):
                    future.set_result(job(self._check))
            except BaseException as error:  # re-raised by result()
                future.set_exception(error)

        self._worker = threading.Thread(target=work, name=f"rollouts-{iteration}", daemon=True)
        self._worker.start()

    def _check(self) -> None:
        if self._stop.is_set():
            raise CancelledError
