"""Dispatcher thread: gives samples to worker processes, enforces deadlines and replaces failed workers."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from gspo_lightning.core.errors import InfrastructureError, UserError
from gspo_lightning.rewards.reward import Reward
from gspo_lightning.rewards.sandbox import sweep
from gspo_lightning.rewards.types import Score, ScoreStatus
from gspo_lightning.rewards.workers.jobs import Job, Limits, Task, cut
from gspo_lightning.rewards.workers.judge import plugin_error
from gspo_lightning.rewards.workers.process import WorkerProcess
from gspo_lightning.rewards.workers.protocol import Setup

_START_SECONDS = 120.0
_START_ATTEMPTS = 10
_PATIENCE = 10
"""Deadlines after which a sample starved of CPU is given up, if they are more than the seconds below."""
_PATIENCE_SECONDS = 30.0
"""Seconds of wall time before which no such sample is given up."""
_CRASH_SIGNALS = frozenset((signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL))


class Dispatcher:
    """The owner of the worker processes. All but :meth:`submit` and :meth:`close` happens on its thread.

    Workers must be started by a thread that lives as long as they do: the kernel kills them when it ends.
    """

    def __init__(self, rewards: Mapping[str, Reward], setup: Setup, limits: Limits) -> None:
        self._rewards = rewards
        self._setup = setup
        self._limits = limits
        self._workers: list[WorkerProcess] = []
        self._queue: deque[Task] = deque()
        self._jobs: deque[Job] = deque()
        self._running: list[Job] = []
        self._failed_starts = 0
        self._closing = False
        self._broken: BaseException | None = None
        self._owner = os.getpid()
        self._wake_lock = threading.Lock()
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._selector.register(self._wake_read, selectors.EVENT_READ, None)
        self._thread = threading.Thread(target=self._main, name="gspo-rewards", daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Queue a job; returns at once."""
        self._jobs.append(job)
        self._wake()
        if self._broken is not None:
            job.fail(self._broken)

    def close(self) -> None:
        """Kill the workers and wait until they are gone."""
        if os.getpid() != self._owner:  # a fork does not own its parent's workers
            return
        self._closing = True
        self._wake()
        if threading.current_thread() is not self._thread:  # the garbage collector may run on any thread
            self._thread.join()
            sweep()  # sandboxes that waited for a worker's next program

    def pids(self) -> list[int]:
        """Return the process ids of the live workers."""
        return [w.pid for w in list(self._workers)]

    def _wake(self) -> None:
        with self._wake_lock, contextlib.suppress(BlockingIOError):  # a full pipe holds wake-ups already
            if self._wake_write >= 0:
                os.write(self._wake_write, b"!")

    # the thread --------------------------------------------------------------------------------------------------

    def _main(self) -> None:
        try:
            while not self._closing:
                self._take_jobs()
                self._fill_up()
                self._deal()
                self._listen()
                self._keep_deadlines()
            self._broken = InfrastructureError("the reward runner was closed before this was scored")
        except BaseException as error:
            self._broken = error
        finally:
            assert self._broken is not None
            while self._workers:
                self._remove(self._workers[-1])
            for job in [*self._running, *self._jobs]:
                job.fail(self._broken)
            self._selector.close()
            with self._wake_lock:
                os.close(self._wake_read)
                os.close(self._wake_write)
                self._wake_write = -1

    def _take_jobs(self) -> None:
        while self._jobs:
            job = self._jobs.popleft()
            self._running.append(job)
            for name in job.parts:
                whole = self._rewards[name].batched
                self._queue.extend(cut(job, name, whole=whole, workers=self._limits.workers))
        self._running = [job for job in self._running if not job.finished.is_set()]

    def _fill_up(self) -> None:
        """Keep up the number of workers; a due worker serves until its successor is ready, a grown one does not."""
        worn = [w for w in self._workers if w.ready and self._worn(w)]
        for worker in worn:
            spare = sum(w.ready for w in self._workers) > self._limits.workers
            if worker.task is None and (spare or self._grown(worker)):
                self._remove(worker)
        successor = int(any(w in self._workers for w in worn))
        while len(self._workers) < self._limits.workers + successor:
            try:
                worker = WorkerProcess(self._setup)
            except OSError as error:
                raise InfrastructureError(f"a reward worker cannot be started: {error}") from error
            self._workers.append(worker)
            self._selector.register(worker.output, selectors.EVENT_READ, worker)
            self._push(worker)

    def _worn(self, worker: WorkerProcess) -> bool:
        """True if a worker should be replaced: it is due and no task waits, far overdue, or its memory has grown."""
        due = worker.judged >= self._limits.recycle_after
        overdue = worker.judged >= 10 * self._limits.recycle_after
        return (due and not self._queue) or overdue or self._grown(worker)

    def _grown(self, worker: WorkerProcess) -> bool:
        return worker.address_space_mb > self._limits.memory_mb / 2

    def _deal(self) -> None:
        for worker in self._workers:
            if not worker.ready or worker.task is not None:
                continue
            while self._queue and self._queue[0].job.finished.is_set():
                self._queue.popleft()
            if not self._queue:
                return
            task = self._queue.popleft()
            worker.give(task, [task.job.samples[i] for i in task.indices])
            self._push(worker)

    def _push(self, worker: WorkerProcess) -> None:
        worker.send()
        watched = worker.input in self._selector.get_map()
        if worker.has_unsent and not watched:
            self._selector.register(worker.input, selectors.EVENT_WRITE, worker)
        elif watched and not worker.has_unsent:
            self._selector.unregister(worker.input)

    def _remove(self, worker: WorkerProcess) -> int:
        self._workers.remove(worker)
        for descriptor in (worker.output, worker.input):
            if descriptor in self._selector.get_map():
                self._selector.unregister(descriptor)
        return worker.kill()

    def _listen(self) -> None:
        for key, events in self._selector.select(self._next_look()):
            worker: WorkerProcess | None = key.data
            if worker is None:
                os.read(self._wake_read, 4096)
            elif worker not in self._workers:
                continue
            elif events & selectors.EVENT_WRITE:
                self._push(worker)
            else:
                self._hear(worker)

    def _hear(self, worker: WorkerProcess) -> None:
        try:
            messages = worker.receive()
        except ValueError as error:  # something in that process wrote into its pipe
            self._lost(worker, self._remove(worker), f"the worker sent {error}")
            return
        if messages is None:
            worker.wait_for_end()
            self._lost(worker, self._remove(worker))
            return
        for message in messages:
            self._handle(worker, message)

    def _handle(self, worker: WorkerProcess, message: dict[str, Any]) -> None:
        kind = message["t"]
        task = worker.task
        if kind == "ready":
            worker.ready = True
            self._failed_starts = 0
            worker.begin(message["cpu"])
        elif kind == "broken":
            self._fail_all(UserError("rewards", f"cannot be loaded in a worker: {message['error']}"), message["trace"])
        elif task is None:
            return
        elif kind == "score":
            task.job.settle(task.reward, task.indices[task.done], _score(message))
            task.done += 1
            worker.judged += 1
            worker.begin(message["cpu"])
        elif kind == "done":
            worker.task = None
            worker.address_space_mb = message["mb"]
            worker.begin(message["cpu"])
        elif kind == "unavailable":
            self._try_again(task, message["reason"])
            task.done = len(task.indices)
        elif kind == "raised":
            task.job.fail(plugin_error(task.reward, message["id"], message["error"], message["trace"], message["at"]))
        elif kind == "refused":
            task.job.fail(UserError(message["field"], message["problem"], fix=message["fix"]))

    # deadlines and losses ----------------------------------------------------------------------------------------

    def _next_look(self) -> float | None:
        """Return the seconds until a worker's deadline needs a check; None while nothing runs."""
        waits = []
        for worker in self._workers:
            if not worker.ready:
                waits.append(_START_SECONDS - worker.wall)
            elif worker.task is not None:
                deadline = self._deadline(worker.task)
                left = deadline - worker.wall
                waits.append(left if left > 0 else max(0.1, deadline / 8))
        return max(0.005, min(waits)) if waits else None

    def _keep_deadlines(self) -> None:
        for worker in list(self._workers):
            if not worker.ready:
                if worker.wall > _START_SECONDS:
                    self._lost(worker, self._remove(worker))
            elif worker.task is not None and worker.wall >= (deadline := self._deadline(worker.task)):
                self._judge_overrun(worker, deadline)

    def _deadline(self, task: Task) -> float:
        return self._rewards[task.reward].deadline_s or self._limits.deadline_s

    def _judge_overrun(self, worker: WorkerProcess, deadline: float) -> None:
        """Handle a sample past its deadline; a sample starved by a busy machine gets more wall time.

        The deadline counts CPU time. A sleeping sample is given up (and tried again elsewhere). A worker is asleep if
        it used, or waited for, the CPU less than half of the time between two looks.
        """
        if worker.cpu() >= 0.95 * deadline:
            self._remove(worker)
            self._overran(worker)
            return
        usage = worker.look()
        asleep = usage is not None and usage.asleep
        if asleep or worker.wall > max(_PATIENCE * deadline, _PATIENCE_SECONDS):
            self._lost(worker, self._remove(worker), f"no result within {worker.wall:.1f} s, without using the CPU")

    def _overran(self, worker: WorkerProcess) -> None:
        """Give the sample in flight reward 0 for using up its CPU time; a shared batch is split instead."""
        task = worker.task
        assert task is not None
        if len(task.in_flight) == 1:
            detail = f"more than {self._deadline(task):g} s of CPU time"
            task.job.settle(task.reward, task.in_flight[0], Score(0.0, ScoreStatus.TIMEOUT, detail))
            self._requeue(task, task.behind, together=True)
        else:
            self._requeue(task, task.in_flight, together=False)

    def _lost(self, worker: WorkerProcess, status: int, reason: str | None = None) -> None:
        """Handle the unexpected end of a worker: the sample in flight gets a second attempt, then is missing."""
        task = worker.task
        if task is None or task.done == len(task.indices):
            self._start_failed(worker, status)
            return
        if status == -signal.SIGXCPU:
            self._overran(worker)
            return
        crashed = reason is None and -status in _CRASH_SIGNALS
        crash = f"judging it crashed with {signal.Signals(-status).name}, twice" if crashed else None
        self._try_again(task, reason or f"the worker ended with {_status_text(status)}", crash)

    def _try_again(self, task: Task, why: str, crash: str | None = None) -> None:
        """Give up a task: retry or score the sample in flight, requeue the ones not begun."""
        if len(task.in_flight) > 1:
            self._requeue(task, task.in_flight, together=False)
            return
        index = task.in_flight[0]
        task.job.losses[task.reward, index] += 1
        self._requeue(task, task.behind, together=True)
        if task.job.losses[task.reward, index] == 1:
            self._requeue(task, [index], together=True)
        elif crash is not None:
            task.job.settle(task.reward, index, Score.model_error(crash))
        else:
            task.job.lost.add(index)
            task.job.settle(task.reward, index, Score.missing(f"{why}, twice"))

    def _requeue(self, task: Task, indices: Sequence[int], *, together: bool) -> None:
        groups = [list(indices)] if together else [[index] for index in reversed(indices)]
        for group in groups:
            if group:
                self._queue.appendleft(Task(task.job, task.reward, group, task.whole))

    def _start_failed(self, worker: WorkerProcess, status: int) -> None:
        if worker.ready:  # it was killed while idle
            return
        self._failed_starts += 1
        if self._failed_starts >= _START_ATTEMPTS:
            self._fail_all(
                InfrastructureError(f"reward workers end while they start, with {_status_text(status)}; see stderr"), ""
            )

    def _fail_all(self, error: BaseException, trace: str) -> None:
        if trace:
            error.add_note(trace)
        raise error


def _score(message: Mapping[str, Any]) -> Score:
    steps = tuple((int(end), float(score)) for end, score in message.get("p", ()))
    logged = message.get("m", {})
    extra = message.get("x", {})
    return Score(message["r"], ScoreStatus(message["s"]), message["d"], logged, extra, steps, message.get("f", False))


def _status_text(status: int) -> str:
    return f"signal {signal.Signals(-status).name}" if status < 0 else f"exit code {status}"
