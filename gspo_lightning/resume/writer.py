"""Lock a folder for one writer, with a lock of the operating system that no killed process leaves behind.

The first rank of ``gspo fit`` locks its run folder, and ``gspo evaluate`` its output. Reading needs no lock.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from filelock import FileLock, Timeout

from gspo_lightning.core.errors import GSPOError, InfrastructureError, UserError
from gspo_lightning.core.temp_files import alive
from gspo_lightning.resume.files import write_text

log = logging.getLogger(__name__)

LOCK = ".lock"
"""The lock file."""
HOLDER = ".lock.json"
"""The file that names its holder, used in messages only."""
NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL}
"""Errors of a file system without locks."""
ROOT_DIR = "trainer.default_root_dir"
DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}
_RANKS = (
    "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "SLURM_PROCID", "JSM_NAMESPACE_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK",
)  # fmt: skip
"""Environment variables with which launchers number processes, besides ``RANK``."""
_HELD: set[Path] = set()


class Writer:
    """The right of one job to write run folders, until it is closed.

    The lock's descriptor is closed in every child: a worker or server that outlives this process does not keep it. A
    refusal must reach other ranks that are already running: it is kept until :meth:`settle`.
    """

    def __init__(self) -> None:
        self._lock: FileLock | None = None
        self._folder: Path | None = None
        self._refusal: UserError | None = None
        self.first = _is_first()
        self._alone = not any(name in os.environ for name in ("RANK", *_RANKS))
        """True if no other rank of this job is running yet."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def enter(self, folder: Path) -> None:
        """Lock the folder of an existing run, before its content is changed or trusted.

        Raises:
            UserError: another process writes it, or it cannot be written, and this job has no other ranks yet.
        """
        if not self.first:
            return
        try:
            self._take(folder)
        except UserError as refusal:
            if self._alone:
                raise
            self._refusal = refusal

    def settle(self, folder: Path) -> None:
        """Lock the folder that is about to be written, unless it is locked already; only in the first rank.

        Raises:
            UserError: as in :meth:`enter`, including a refusal that it kept.
        """
        if self._refusal is not None:
            raise self._refusal
        self._take(folder)

    def close(self) -> None:
        """Release the lock."""
        if self._lock is None or self._folder is None:
            return
        with contextlib.suppress(OSError):  # someone has deleted the folder
            (self._folder / HOLDER).unlink(missing_ok=True)
        _HELD.discard(self._folder)
        self._lock.release()
        self._lock = self._folder = None

    def _take(self, folder: Path) -> None:
        folder = folder.resolve()
        if folder == self._folder:
            return
        self.close()
        self._lock = _acquired(folder, ROOT_DIR, _refused)
        if self._lock is not None:
            self._folder = folder
            _HELD.add(folder)
            _sign(folder, ROOT_DIR)


@contextlib.contextmanager
def sole_writer(folder: Path, field: str) -> Iterator[None]:
    """Hold the lock of a folder that a command without ranks writes; make the folder if needed.

    Raises:
        UserError: another process writes it, or it may not be written.
        InfrastructureError: it cannot be made.
    """

    def refused(folder: Path) -> UserError:
        holder = _holder(folder)
        if not holder:
            problem = f"{folder} is being written by another process"
            return UserError(field, problem, fix="wait for it; or name another folder")
        return UserError(
            field,
            f"{folder} is being written by process {holder['pid']} on {holder['host']}, since {holder['since']}",
            fix=f"wait for it or stop it (kill {holder['pid']}), then repeat this command; or name another folder",
        )

    lock = _acquired(folder, field, refused)
    try:
        if lock is not None:
            _sign(folder, field)
        yield
    finally:
        if lock is not None:
            with contextlib.suppress(OSError):  # someone has deleted the folder
                (folder / HOLDER).unlink(missing_ok=True)
            lock.release()


def _acquired(folder: Path, field: str, refused: Callable[[Path], UserError]) -> FileLock | None:
    """Acquire the lock; return None on a file system without locks."""
    lock = FileLock(folder / LOCK)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout:
        raise refused(folder) from None
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise _unwritable(folder, error, field) from error
        log.warning(
            "%s is on a file system without locks (%s): nothing prevents a second process from writing there, too",
            folder, error.strerror,
        )  # fmt: skip
        return None
    return lock


def _sign(folder: Path, field: str) -> None:
    """Record the holder of the lock."""
    about = {"host": socket.gethostname(), "pid": os.getpid(), "since": time.strftime("%Y-%m-%d %H:%M:%S %Z")}
    try:
        write_text(folder / HOLDER, json.dumps(about) + "\n")
    except OSError as error:
        raise _unwritable(folder, error, field) from error


def is_held(folder: Path) -> bool:
    """True if this process holds the lock of a run folder."""
    return folder.resolve() in _HELD


def claim_version(root: Path, next_version: Callable[[], int]) -> int:
    """Make a new folder ``version_N``; return N.

    Args:
        root: parent of the versions.
        next_version: returns one more than the highest existing number.

    Raises:
        UserError: it may not be made there.
        InfrastructureError: it cannot be made.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
        while True:
            number = next_version()
            with contextlib.suppress(FileExistsError):  # another run was quicker
                (root / f"version_{number}").mkdir()
                return number
    except OSError as error:
        raise _unwritable(root, error) from error


def _is_first() -> bool:
    """True if this process is the first rank, or will start the others; works before there is a process group."""
    if "RANK" in os.environ:
        return os.environ["RANK"] == "0"
    return all(os.environ.get(name, "0") == "0" for name in _RANKS)


def _unwritable(folder: Path, error: OSError, field: str = ROOT_DIR) -> GSPOError:
    why = f"{str(folder)!r} cannot be written: {error.strerror or error}"
    if error.errno in DENIED:
        return UserError(field, why, fix="make it writable, or give another one")
    return InfrastructureError(f"{why}\n  fix: make room, then repeat this command")


def _refused(folder: Path) -> UserError:
    holder = _holder(folder)
    writer = "another process"
    hint = ""
    if holder:
        writer = f"process {holder['pid']} on {holder['host']}, since {holder['since']}"
        hint = f" (kill {holder['pid']} lets it save a checkpoint)"
    return UserError(
        "ckpt_path" if (folder / "checkpoints").is_dir() else ROOT_DIR,
        f"the run {folder} is being written by another fit: {writer}",
        fix=f"wait for it or stop it{hint}, then repeat this command; without --ckpt_path a new run gets a folder of "
        "its own, and validate, test, predict, report and export may read this one meanwhile",
    )


def _holder(folder: Path, patience_s: float = 1.0) -> dict[str, Any]:
    """Return the holder of a lock, or an empty dict. It signs just after locking, so wait up to ``patience_s``."""
    until = time.monotonic() + patience_s
    while True:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            holder: dict[str, Any] = json.loads((folder / HOLDER).read_text(encoding="utf-8"))
            if holder["host"] != socket.gethostname() or alive(int(holder["pid"])):
                return {"host": holder["host"], "pid": holder["pid"], "since": holder["since"]}
        if time.monotonic() > until:
            return {}
        time.sleep(0.05)
