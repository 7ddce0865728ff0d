"""A worker process as seen by the runner: start, send, receive, measure, kill."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gspo_lightning.rewards.types import Sample
from gspo_lightning.rewards.workers.interpreter import module_command
from gspo_lightning.rewards.workers.jobs import Task
from gspo_lightning.rewards.workers.protocol import FrameReader, Setup, frame

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_PIPE_PIECE = 1 << 18


@dataclass(frozen=True, slots=True)
class Usage:
    """Activity of a process between two looks at it, in seconds."""

    wall: float
    busy: float
    """CPU time of the whole session plus its time waiting for a CPU: evidence that it was not asleep."""
    runnable: bool
    """True if a process of the session runs or waits for a CPU now; this wait is not in ``busy`` until it ends."""

    @property
    def asleep(self) -> bool:
        """True if the session used, or waited for, the CPU less than half of the time and is not runnable now."""
        return not self.runnable and self.busy < self.wall / 2


class WorkerProcess:
    """A running ``python -m gspo_lightning.rewards.workers.worker`` in a session of its own."""

    def __init__(self, setup: Setup) -> None:
        command, variables = module_command("gspo_lightning.rewards.workers.worker")
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, start_new_session=True, env=variables
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self.pid = self._process.pid
        self.input = self._process.stdin.fileno()
        self.output = self._process.stdout.fileno()
        for descriptor in (self.input, self.output):
            os.set_blocking(descriptor, False)
        self.task: Task | None = None
        self.ready = False
        self.judged = 0
        self.address_space_mb = 0
        self.begun = time.monotonic()
        self._cpu_at_begin = 0.0
        self._cpu_reported = 0.0
        self._look: tuple[float, float] | None = None
        self._reader = FrameReader()
        self._unsent = memoryview(frame(pickle.dumps(setup)))

    # pipes -------------------------------------------------------------------------------------------------------

    @property
    def has_unsent(self) -> bool:
        """True if part of a request waits for room in the pipe."""
        return len(self._unsent) > 0

    def give(self, task: Task, samples: Sequence[Sample]) -> None:
        """Queue a task; :meth:`send` writes it to the pipe."""
        self.task = task
        self._unsent = memoryview(frame(pickle.dumps((task.reward, list(samples)), protocol=5)))
        self.begin()

    def send(self) -> None:
        """Write as much of the request as the pipe takes; a broken pipe shows when reading."""
        try:
            while self._unsent:
                self._unsent = self._unsent[os.write(self.input, self._unsent[:_PIPE_PIECE]) :]
                self.begun = time.monotonic()
        except BlockingIOError:
            return
        except BrokenPipeError:
            self._unsent = memoryview(b"")

    def receive(self) -> list[dict[str, Any]] | None:
        """Return the messages that have arrived, or None once the worker has closed its end."""
        messages: list[dict[str, Any]] = []
        while True:
            try:
                piece = os.read(self.output, _PIPE_PIECE)
            except BlockingIOError:
                return messages
            if not piece:
                return messages or None
            messages += self._reader.feed(piece)

    # time --------------------------------------------------------------------------------------------------------

    def begin(self, cpu: float | None = None) -> None:
        """Start the clock of the next sample, at this CPU time as reported by the worker."""
        if cpu is not None:
            self._cpu_reported = cpu
        self.begun = time.monotonic()
        self._cpu_at_begin = self._cpu_reported
        self._look = None

    @property
    def wall(self) -> float:
        """Seconds of wall time since the sample in flight (or the process) began."""
        return time.monotonic() - self.begun

    def cpu(self) -> float:
        """Return the CPU seconds that the sample in flight has used, including subprocesses."""
        return max(0.0, _session_cpu(self.pid) - self._cpu_at_begin)

    def look(self) -> Usage | None:
        """Return the activity since the last look at this sample; None at the first look."""
        now = time.monotonic()
        busy = _session_cpu(self.pid) + _session_waiting(self.pid)
        runnable = any(fields[0] == b"R" for _, fields in _session(self.pid))
        before = self._look
        self._look = (now, busy)
        return None if before is None else Usage(now - before[0], busy - before[1], runnable)

    # end ---------------------------------------------------------------------------------------------------------

    def kill(self) -> int:
        """Kill the process and its whole session at once, close its pipes and return the exit status.

        A negative status is the number of the signal that ended it, as in :mod:`subprocess`.
        """
        with contextlib.suppress(ProcessLookupError):  # already gone, with its children
            os.killpg(self.pid, signal.SIGKILL)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        return self._process.wait()

    def wait_for_end(self, patience_s: float = 0.5) -> None:
        """Give a process that has closed its pipe a moment to end by itself.

        It is not reaped: :meth:`kill` still gets its own exit status, and no other process gets its number.
        """
        latest = time.monotonic() + patience_s
        while time.monotonic() < latest:
            if os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                return
            time.sleep(0.001)


def _session_cpu(session: int) -> float:
    """Return the CPU seconds of all processes of a session, including children they have waited for."""
    ticks = sum(int(number) for _, fields in _session(session) for number in fields[11:15])
    return ticks / _TICKS_PER_SECOND


def _session_waiting(session: int) -> float:
    """Return the seconds that the processes of a session were ready to run but had no CPU."""
    return sum(_waiting_for_cpu(pid) for pid, _ in _session(session))


def _session(session: int) -> Iterator[tuple[int, list[bytes]]]:
    """Iterate over the process ids of a session, with the fields of ``/proc/<pid>/stat``."""
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (fields := _stat(int(entry))) is not None and int(fields[3]) == session:
            yield int(entry), fields


def _stat(pid: int) -> list[bytes] | None:
    """Return the fields of ``/proc/<pid>/stat`` from the state on (proc(5) field 3), or None if the process is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return None


def _waiting_for_cpu(pid: int) -> float:
    """Return the seconds that a process's main thread was ready but had no CPU; 0 if the kernel does not say."""
    try:
        with open(f"/proc/{pid}/schedstat", "rb") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0
