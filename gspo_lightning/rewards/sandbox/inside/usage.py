"""Resource use of a test's processes so far, from /proc."""

from __future__ import annotations

import os

TYPE_CHECKING = False  # importing typing would take longer than all of this
if TYPE_CHECKING:
    from collections.abc import Iterable

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE_MB = os.sysconf("SC_PAGE_SIZE") / (1 << 20)


class Usage:
    """Seconds of CPU, resident MiB, number of processes, and whether any of them runs or is ready to run."""

    def __init__(self, cpu: float, resident_mb: float, processes: int, *, awake: bool) -> None:
        self.cpu = cpu
        self.resident_mb = resident_mb
        self.processes = processes
        self.awake = awake


def others(*known: int) -> list[int]:
    """Return all visible processes except the known ones."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) not in known]


def family(pid: int) -> list[int]:
    """Return a process with all its descendants that have not ended; other processes may be visible, too."""
    pids = [pid]
    for parent in pids:  # the list grows meanwhile
        try:
            with open(f"/proc/{parent}/task/{parent}/children", "rb") as file:
                pids += [int(child) for child in file.read().split()]
        except OSError:  # it has ended
            continue
    return pids


def used(pids: Iterable[int]) -> Usage:
    """Return the sums over processes, with the CPU time of the children that they have waited for.

    Processes that have just ended count 0. A process that its parent has not waited for is still there.
    """
    cpu = resident = 0.0
    count = 0
    awake = False
    for pid in pids:
        try:
            fields = _stat(f"/proc/{pid}/stat")
            resident_here = int(fields[21])
            awake_here = fields[0] == b"R"
            if fields[17] != b"1":  # the process's fields are those of its first thread, which may have ended
                for task in os.listdir(f"/proc/{pid}/task"):
                    thread = _stat(f"/proc/{pid}/task/{task}/stat")
                    resident_here = max(resident_here, int(thread[21]))
                    awake_here = awake_here or thread[0] == b"R"
        except OSError:
            continue
        cpu += sum(int(ticks) for ticks in fields[11:15]) / _TICKS
        resident += resident_here * _PAGE_MB
        awake |= awake_here
        count += 1
    return Usage(cpu, resident, count, awake=awake)


def _stat(path: str) -> list[bytes]:
    """Return the fields after the name: number n of proc(5) is at index n - 3."""
    with open(path, "rb") as file:
        return file.read().rpartition(b")")[2].split()
