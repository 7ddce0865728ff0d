"""What the processes of a test have used so far, from /proc."""

from __future__ import annotations

import os

TYPE_CHECKING = False  # importing typing would take longer than all of this
if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Usage", "others", "used"]

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE_MB = os.sysconf("SC_PAGE_SIZE") / (1 << 20)


class Usage:
    """Seconds of CPU, seconds ready to run without a CPU, resident MiB, number of processes."""

    def __init__(self, cpu: float, waiting: float, resident_mb: float, processes: int) -> None:
        self.cpu, self.waiting, self.resident_mb, self.processes = cpu, waiting, resident_mb, processes


def others(*known: int) -> list[int]:
    """The processes that can be seen, without some."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) not in known]


def used(pids: Iterable[int]) -> Usage:
    """The sums over processes; those that have just ended count 0."""
    cpu = waiting = resident = 0.0
    count = 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
            for task in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{task}/schedstat", "rb") as file:
                    waiting += int(file.read().split()[1]) / 1e9
        except OSError:
            continue
        cpu += sum(int(ticks) for ticks in fields[11:15]) / _TICKS
        resident += int(fields[21]) * _PAGE_MB
        count += 1
    return Usage(cpu, waiting, resident, count)
