"""Files that are there whole or not at all."""

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

from gspo_lightning.unfinished import beside, remove

__all__ = [
    "DigestWriter",
    "atomic_file",
    "replace_folder",
    "sha256",
    "swapping",
    "sync_folder",
    "sync_tree",
    "synced",
    "uninterrupted",
    "write_text",
]

_BLOCK = 1 << 20
_EXCHANGE, _HERE = 2, -100
"""RENAME_EXCHANGE and AT_FDCWD of Linux."""


class DigestWriter:
    """A file that remembers the SHA-256 and the number of bytes of what went through it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._hash, self.bytes = file, hashlib.sha256(), 0

    def write(self, data: bytes) -> int:
        """Write all of ``data``; a disk that takes less raises."""
        self._hash.update(data)
        self._file.write(data)
        self.bytes += memoryview(data).nbytes
        return memoryview(data).nbytes

    def flush(self) -> None:
        """As a file's."""
        self._file.flush()

    @property
    def sha256(self) -> str:
        """Hexadecimal, of everything written so far."""
        return self._hash.hexdigest()


@contextlib.contextmanager
def swapping(folder: Path) -> Iterator[None]:
    """One process at a time: what is swapped in and what is said about it belong together.

    The folder itself is locked; where the file system cannot do that, nobody waits.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # also for children that were forked meanwhile
        os.close(descriptor)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Let Ctrl-C and its like wait, in this thread: what is done here is done whole, but for a kill."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def atomic_file(target: Path, private: bool = False) -> Iterator[DigestWriter]:
    """Write beside the target, sync, swap in, sync the folder: a kill at any moment leaves the old file or the new one.

    Args:
        target: the file.
        private: for this user alone (mode 600), from its first byte on; others have what the umask gives.

    Raises:
        OSError: the disk is full, the folder is read-only ...; the target is as it was, nothing is left beside it.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = beside(target)
    try:
        if private:
            unfinished.unlink(missing_ok=True)  # of a run that was killed; it would keep the mode that it has
        with open(unfinished, "wb", opener=_private if private else None) as file:
            yield DigestWriter(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, target)
    except BaseException:
        with contextlib.suppress(OSError):  # what went wrong is on its way up already
            unfinished.unlink(missing_ok=True)
        raise
    sync_folder(target.parent)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_EXCL, 0o600)


def write_text(target: Path, text: str) -> None:
    """:func:`atomic_file` for a small text."""
    with atomic_file(target) as file:
        file.write(text.encode())


def replace_folder(unfinished: Path, target: Path) -> None:
    """Put a folder that is whole in the place of another, which is removed: a kill at any moment leaves one of them.

    A file system that cannot exchange two folders has neither at ``target`` for a moment, the old one beside it.
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
    """Swap two folders in one step; whether the file system could."""
    try:
        rename = ctypes.CDLL(None).renameat2
    except (OSError, AttributeError):
        return False
    return bool(rename(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) == 0)


def sync_folder(folder: Path) -> None:
    """Make renames in a folder survive a power failure."""
    _sync(folder)


def sync_tree(folder: Path) -> None:
    """Make a folder and everything in it survive a power failure."""
    for path in [*folder.rglob("*"), folder]:
        _sync(path)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def synced(file: Path) -> tuple[int, str]:
    """Make a file survive a power failure; returns its bytes and its SHA-256, hexadecimal."""
    _sync(file)
    return file.stat().st_size, sha256(file)


def sha256(path: Path) -> str:
    """Hexadecimal digest of a file."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()
