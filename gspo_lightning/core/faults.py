"""Environment faults behind an exception: a full disk, lack of memory, a missing folder, a lost rank.

Such an exception comes from whatever library happened to write, send or wait at that moment, in its own words.
Nothing here imports torch.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from gspo_lightning.core.errors import GSPOError, InfrastructureError, UserError, chain, first_line

DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO}
"""Error numbers of an operating system that cannot write."""
_ACCESS = {errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP}
"""Error numbers of a path that cannot be used this way."""
_OF_RUST = re.compile(r"(?:I/O error: )?([^:(]+) \(os error (\d+)\)")
"""Text by which safetensors and tokenizers pass on an error of the operating system."""
_PEER = re.compile(
    r"Application timeout caused pair closure"  # of gloo, when an earlier collective has timed out
    r"|gloo/.*(closed by peer|reset by peer|Broken pipe|[Tt]imed out|timeout|Connection refused)"
    r"|NCCL.*(remote process exited|remote error|was aborted|timeout)",
    re.DOTALL,
)
_OF_RANKS = {"DistNetworkError", "DistStoreError"}
"""torch's own exceptions about ranks."""


def os_errors(error: BaseException) -> Iterator[OSError]:
    """Yield the errors of the operating system among an exception's causes."""
    for one in chain(error):
        if isinstance(one, OSError) and one.errno is not None:
            yield one
        elif (found := _OF_RUST.search(str(one))) is not None:
            yield OSError(int(found.group(2)), found.group(1).strip())


def has_lost_a_rank(error: BaseException) -> bool:
    """True if the exception says that another process of the run no longer answers."""
    known = [one for one in chain(error) if isinstance(one, RuntimeError)]
    return any(type(one).__name__ in _OF_RANKS or _PEER.search(str(one)) for one in known)


def fault_around(error: BaseException) -> GSPOError | None:
    """Return one message for a fault that is neither this package's nor a plug-in's; None for other exceptions."""
    if has_lost_a_rank(error):
        return InfrastructureError(
            f"rank {os.environ.get('LOCAL_RANK', '0')} cannot continue: another rank has ended, killed or with "
            f"an error that it has reported, or does not answer (stacks/ in the run folder then says where each rank "
            f"is); checkpoints that were finished are intact.\n"
            f"  fix: find out why (dmesg shows kills for lack of memory), then resume with --ckpt_path last"
        )
    if _lacks_memory(error) or (error.__cause__ is not None and _lacks_memory(error.__cause__)):
        return InfrastructureError(
            f"memory ran out: {first_line(error)}; checkpoints that were finished are whole.\n"
            f"  fix: give smaller files or settings (gspo plan counts them), or a larger machine or device, and repeat "
            f"the command; a training goes on with --ckpt_path last"
        )
    for found in os_errors(error):
        file = os.fsdecode(found.filename) if isinstance(found.filename, str | bytes) else ""
        if found.errno in DISK:
            return InfrastructureError(
                f"writing failed: {found.strerror}{f': {file}' if file else ''}; checkpoints that were finished "
                f"are whole.\n  fix: make room (or the folder writable) and repeat the command; a training goes on "
                f"with --ckpt_path last"
            )
        if found.errno in (errno.ENOENT, errno.ESTALE) and file and (gone := missing_folder(Path(file))) is not None:
            return folder_gone(gone)
        if found.errno in _ACCESS and file and found in (error, error.__cause__):  # not an error that was handled
            why = f"cannot be used: {found.strerror}"
            return UserError(file, why, fix="give another path, or make this one writable")
    return None


def _lacks_memory(error: BaseException) -> bool:
    """True for Python's out-of-memory error, or torch's, which is not imported here."""
    text = str(error)
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError)
        and (
            type(error).__name__ == "OutOfMemoryError" or "not enough memory" in text or "can't allocate memory" in text
        )
    )


def folder_gone(folder: Path) -> InfrastructureError:
    """Return the error for a folder that is missing in the middle of a run."""
    return InfrastructureError(
        f"the folder {folder} is gone: it was deleted or moved, or its disk was removed, while in use.\n"
        f"  fix: restore it and resume with --ckpt_path last, or start again"
    )


def missing_folder(file: Path) -> Path | None:
    """Return the topmost missing folder of an absolute path; None if only the file is missing."""
    missing = [folder for folder in file.parents if not folder.exists()]
    return missing[-1] if missing and file.is_absolute() else None


@contextlib.contextmanager
def written(what: str, folder: Path) -> Iterator[None]:
    """Name what is being written into a folder, and remove the folder if the write fails.

    Raises:
        InfrastructureError: the operating system refuses to write it.
    """
    try:
        yield
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)  # a partial folder would take up disk space
        if not isinstance(error, Exception) or (found := next(os_errors(error), None)) is None:
            raise
        raise InfrastructureError(
            f"{what} cannot be written: {found.strerror}; nothing of it is left.\n"
            f"  fix: make room (or the folder writable) and repeat the command"
        ) from error
