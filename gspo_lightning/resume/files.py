"""Write files and folders atomically."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hashlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from gspo_lightning.core.temp_files import remove, temp_path

_BLOCK = 1 << 20
_EXCHANGE = 2
"""RENAME_EXCHANGE of Linux."""
_HERE = -100
"""AT_FDCWD of Linux."""


class DigestWriter:
    """Binary file writer that tracks the SHA-256 and the number of bytes written."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self.bytes = 0

    def write(self, data: bytes) -> int:
        """Write all of ``data``; raise if the disk takes less."""
        self._hash.update(data)
        self._file.write(data)
        self.bytes += memoryview(data).nbytes
        return memoryview(data).nbytes

    def flush(self) -> None:
        """Flush the file."""
        self._file.flush()

    @property
    def sha256(self) -> str:
        """Hexadecimal digest of everything written so far."""
        return self._hash.hexdigest()


@contextlib.contextmanager
def swapping(folder: Path) -> Iterator[None]:
    """Lock a folder for one process at a time: a swapped-in file and its manifest belong together.

    The folder itself is locked; on a file system without locks, nobody waits.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # also for children forked meanwhile
        os.close(descriptor)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Delay Ctrl-C, SIGTERM and SIGHUP in this thread, so that only a kill can interrupt the block."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def atomic_file(target: Path, private: bool = False) -> Iterator[DigestWriter]:
    """Write beside the target, sync, swap in, sync the folder: a kill at any moment leaves the old file or the new one.

    No folder is made: one that is missing was deleted or moved, and must not come back with this file alone.

    Args:
        target: the file, in a folder that exists.
        private: readable by this user alone (mode 600), from its first byte on; otherwise the umask decides.

    Raises:
        OSError: the disk is full, the folder is read-only or gone ...; the target is unchanged, nothing is beside it.
    """
    unfinished = temp_path(target)
    try:
        if private:
            unfinished.unlink(missing_ok=True)  # left by a killed run; it would keep its mode
        with open(unfinished, "wb", opener=_private if private else None) as file:
            yield DigestWriter(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, target)
    except BaseException:
        with contextlib.suppress(OSError):  # the original error is already propagating
            unfinished.unlink(missing_ok=True)
        raise
    sync_folder(target.parent)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_EXCL, 0o600)


def write_text(target: Path, text: str) -> None:
    """Write a small text with :func:`atomic_file`."""
    with atomic_file(target) as file:
        file.write(text.encode())


def replace_folder(unfinished: Path, target: Path) -> None:
    """Replace a folder by another that is complete, and remove the old one: a kill at any moment leaves one of them.

    On a file system that cannot exchange two folders, ``target`` is missing for a moment, and the old one is beside it.
    """
    if not target.exists():
        os.rename(unfinished, target)
    elif not _exchange(unfinished, target):
        names = (target.with_name(f"{target.name}.old-{number}") for number in range(1, 10_000))
        aside = next(path for path in names if not path.exists())
        os.rename(target, aside)
        try:
            os.rename(unfinished, target)
        except BaseException:
            os.rename(aside, target)
            raise
        unfinished = aside
    sync_folder(target.parent)
    if unfinished.exists():
        remove(unfinished)


def _exchange(one: Path, other: Path) -> bool:
    """Swap two folders in one step; return False if the file system cannot."""
    try:
        rename = ctypes.CDLL(None).renameat2
    except (OSError, AttributeError):
        return False
    return bool(rename(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) == 0)


def sync_folder(folder: Path) -> None:
    """Make renames in a folder survive a power failure."""
    sync_path(folder)


def sync_tree(folder: Path) -> None:
    """Make a folder and everything in it survive a power failure."""
    for path in [*folder.rglob("*"), folder]:
        sync_path(path)


def sync_path(path: Path) -> None:
    """Make a file, or the names in a folder, survive a power failure."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def synced(file: Path) -> tuple[int, str]:
    """Make a file survive a power failure; return its size in bytes and its hexadecimal SHA-256."""
    sync_path(file)
    return file.stat().st_size, sha256(file)


def sha256(path: Path) -> str:
    """Return the hexadecimal SHA-256 of a file."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()
