"""Jobs to score, and their division into tasks for workers."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from gspo_lightning.core.errors import InfrastructureError
from gspo_lightning.rewards.types import Sample, Score

_SAMPLES = 32
_CHARACTERS = 4_000_000


@dataclass(frozen=True, slots=True)
class Limits:
    """Resource limits of workers: ``deadline_s`` CPU seconds a sample, ``memory_mb`` MiB, ``recycle_after`` samples."""

    workers: int
    deadline_s: float
    memory_mb: int
    recycle_after: int


@dataclass(slots=True)
class Job:
    """A call of ``submit``: its samples, the scores so far, and the number of scores still open."""

    samples: Sequence[Sample]
    parts: dict[str, list[Score | None]]
    open: int
    finished: threading.Event = field(default_factory=threading.Event)
    error: BaseException | None = None
    lost: set[int] = field(default_factory=set)
    """Samples that are missing because the infrastructure failed, not because of a reward."""
    losses: Counter[tuple[str, int]] = field(default_factory=Counter)

    def settle(self, reward: str, index: int, score: Score) -> None:
        """Record a score."""
        self.parts[reward][index] = score
        self.open -= 1
        if self.open == 0:
            self.finished.set()

    def fail(self, error: BaseException) -> None:
        """Finish with an error; the first error counts."""
        if not self.finished.is_set():
            self.error = error
            self.finished.set()


def settled(score: Score | None) -> Score:
    """Return a score of a job that has finished.

    Raises:
        InfrastructureError: the job has left it open.
    """
    if score is None:
        raise InfrastructureError("a sample was left without a score")
    return score


@dataclass(slots=True)
class Task:
    """Samples for one reward, given to one worker: ``indices`` into the job's samples; ``done`` of them are scored."""

    job: Job
    reward: str
    indices: list[int]
    whole: bool
    """True if one call scores all samples: all that are not done are then in flight at once."""
    done: int = 0

    @property
    def in_flight(self) -> list[int]:
        """The samples to blame if the worker were lost now."""
        return self.indices[self.done :] if self.whole else self.indices[self.done : self.done + 1]

    @property
    def behind(self) -> list[int]:
        """The samples behind the ones in flight, not begun yet."""
        return [] if self.whole else self.indices[self.done + 1 :]


def cut(job: Job, reward: str, *, whole: bool, workers: int) -> list[Task]:
    """Divide a job into tasks of at most 32 samples, about four or more per worker; deterministic for given samples.

    Samples that already have a score, because the reward does not apply to them, are left out.
    """
    size = max(1, min(_SAMPLES, len(job.samples) // (4 * workers)))
    tasks: list[Task] = []
    characters = 0
    for index, sample in enumerate(job.samples):
        if job.parts[reward][index] is not None:
            continue
        characters += len(sample.completion)
        if not tasks or len(tasks[-1].indices) == size or characters > _CHARACTERS:
            tasks.append(Task(job, reward, [], whole))
            characters = len(sample.completion)
        tasks[-1].indices.append(index)
    return tasks
