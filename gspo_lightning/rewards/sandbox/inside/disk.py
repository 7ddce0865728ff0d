"""Disk use of a test whose working directory is a folder of the machine."""

from __future__ import annotations

import os

TYPE_CHECKING = False  # importing typing would take longer than all of this
if TYPE_CHECKING:
    from collections.abc import Mapping

_BLOCK = 512


def overfull(directory: str, pid: int, limits: Mapping[str, int]) -> bool:
    """True if a process made too many files or bytes, in its flat folder or in removed files that are still open."""
    count = size = 0
    with os.scandir(directory) as entries:
        for entry in entries:
            count += 1
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:  # the program has removed the file meanwhile
                continue
            size += _size(status)
    for removed in _open_and_removed(pid), _mapped_and_removed(pid, limits["file_mb"] << 20):
        count += len(removed)
        size += sum(removed.values())
    return count > limits["files"] or size > limits["disk_mb"] << 20


def empty(directory: str) -> None:
    """Remove a flat folder; anything else that a program could make in it without a sandbox is left to the caller."""
    with os.scandir(directory) as entries:
        for entry in entries:
            if not entry.is_dir(follow_symlinks=False):
                os.unlink(entry.path)
    if not os.listdir(directory):
        os.rmdir(directory)


def _size(status: os.stat_result) -> int:
    """Return the bytes of a file, the larger of its length and its blocks: either can be zero without the other."""
    return max(status.st_size, status.st_blocks * _BLOCK)


def _open_and_removed(pid: int) -> dict[tuple[int, int], int]:
    """Return (device, inode) -> bytes of removed files that are still open; the first descriptors are the driver's."""
    sizes = {}
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            if int(name) > 4:
                file = os.stat(f"/proc/{pid}/fd/{name}")
                if not file.st_nlink:
                    sizes[file.st_dev, file.st_ino] = _size(file)
    except OSError:  # it has ended
        pass
    return sizes


def _mapped_and_removed(pid: int, largest: int) -> dict[bytes, int]:
    """Return device and inode -> upper bound in bytes of mapped, removed files: only their names can be seen."""
    driver_files = _deleted("self")
    return dict.fromkeys(_deleted(str(pid)) - driver_files, largest)


def _deleted(pid: str) -> set[bytes]:
    """Return device and inode of mapped, removed files. Those mapped from the start are not the program's doing."""
    try:
        with open(f"/proc/{pid}/maps", "rb") as file:
            lines = [line.split(None, 5) for line in file if line.endswith(b" (deleted)\n")]
    except OSError:  # it has ended
        return set()
    return {line[3] + b" " + line[4] for line in lines if not line[5].startswith(b"/memfd:")}
