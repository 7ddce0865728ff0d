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
    for cause in chain(error):
        if isinstance(cause, OSError) and cause.errno is not None:
            yield cause
            continue
        of_rust = _OF_RUST.search(str(cause))
        if of_rust is not None:
            message, number = of_rust.groups()
            yield OSError(int(number), message.strip())


def has_lost_a_rank(error: BaseException) -> bool:
    """True if the exception says that another process of the run no longer answers."""
    for cause in chain(error):
        if isinstance(cause, RuntimeError) and (type(cause).__name__ in _OF_RANKS or _PEER.search(str(cause))):
            return True
    return False


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
    for os_error in os_errors(error):
        file = os.fsdecode(os_error.filename) if isinstance(os_error.filename, str | bytes) else ""
        if os_error.errno in DISK:
            return InfrastructureError(
                f"writing failed: {os_error.strerror}{f': {file}' if file else ''}; checkpoints that were finished "
                f"are whole.\n  fix: make room (or the folder writable) and repeat the command; a training goes on "
                f"with --ckpt_path last"
            )
        if os_error.errno in (errno.ENOENT, errno.ESTALE) and file:
            folder = missing_folder(Path(file))
            if folder is not None:
                return folder_gone(folder)
        was_handled = os_error not in (error, error.__cause__)
        if os_error.errno in _ACCESS and file and not was_handled:
            return UserError(
                file, f"cannot be used: {os_error.strerror}", fix="give another path, or make this one writable"
            )
    return None


def _lacks_memory(error: BaseException) -> bool:
    """True for Python's out-of-memory error, or torch's, which is not imported here."""
    if isinstance(error, MemoryError):
        return True
    if not isinstance(error, RuntimeError):
        return False
    text = str(error)
    return type(error).__name__ == "OutOfMemoryError" or "not enough memory" in text or "can't allocate memory" in text


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
        os_error = next(os_errors(error), None) if isinstance(error, Exception) else None
        if os_error is None:
            raise
        raise InfrastructureError(
            f"{what} cannot be written: {os_error.strerror}; nothing of it is left.\n"
            f"  fix: make room (or the folder writable) and repeat the command"
        ) from error
