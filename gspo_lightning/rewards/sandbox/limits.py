"""Limits of a test, and its outcome."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

LAYERS = frozenset(
    (
        "files", "network", "processes", "environment", "uid", "privileges", "landlock", "seccomp", "watch",
        "cpu", "memory", "tasks", "output", "descriptors", "disk", "core", "queues", "locked",
    )
)  # fmt: skip
"""All layers between a program and the machine. Only tests leave one out, to check that the others hold."""


class End(StrEnum):
    """End of a test. Every value but the first is the program's own failure."""

    FINISHED = "finished"
    """The program ran to its end; whether its output is right is checked elsewhere."""
    SYNTAX_ERROR = "syntax_error"
    """Not a program of its language, according to Python or the compiler."""
    RUNTIME_ERROR = "runtime_error"
    """The program raised, crashed, or ended with a non-zero exit code."""
    TIMEOUT = "timeout"
    """The program used up its CPU time, or slept longer than allowed."""
    MEMORY = "memory"
    """The program asked for more memory than allowed."""
    OUTPUT_LIMIT = "output_limit"
    """The program printed, returned or wrote more than allowed."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one test. Memory is per process, and for all of its processes together as sampled every 20 ms."""

    cpu_s: float = 6.0
    """CPU time in seconds, of all its processes together."""
    memory_mb: int = 1024
    """MiB beyond the interpreter itself."""
    tasks: int = 32
    """Processes and threads. Without namespaces there is one process, and the memory limit bounds its threads."""
    disk_mb: int = 64
    """MiB in its working directory, which is removed with the test."""
    files: int = 512
    """Files in its working directory."""
    file_mb: int = 8
    """MiB of one file, of the printed output, or of the return value."""
    descriptors: int = 64
    """Open files."""
    several: int = 100
    """Tests that may use up their time in one process, before the kernel ends it."""

    @property
    def wall_s(self) -> float:
        """Wall-clock seconds after which a sleeping test is ended."""
        return 2 * self.cpu_s + 1

    @property
    def patience_s(self) -> float:
        """Wall-clock seconds after which a test that gets too little CPU is given up; no program is at fault."""
        return 20 * self.wall_s

    def frame(self) -> dict[str, Any]:
        """Return the limits as the driver takes them."""
        times = {"wall_s": self.wall_s, "patience_s": self.patience_s, "process_cpu_s": self.several * self.cpu_s}
        return dataclasses.asdict(self) | times


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a test: its output, the return value of its function, and how it ended."""

    end: End
    stdout: str = ""
    value: Any = None
    """Return value of the function, as plain data; None if :attr:`returned` is False."""
    returned: bool = False
    detail: str = ""
    """Message for people; it may contain text of the program."""
    cpu_s: float = 0.0
    asleep: bool = False
    """True for a timeout without CPU use: worth a second try before the program is blamed."""
    alive: bool = False
    """True if the process of the test goes on with the next one."""
