"""Half written files: where they stand, whose they are, and what becomes of those that nobody is writing any more.

Nothing here imports torch: commands that start without it write files, too.
"""

from __future__ import annotations

import glob
import os
import shutil
import socket
import stat
from pathlib import Path

__all__ = ["alive", "beside", "remove", "share", "sweep"]

_SUFFIX = ".unfinished"


def beside(target: Path) -> Path:
    """Where ``target`` is written before it is swapped in: in the same folder, so that the swap is one rename.

    The name says whose it is: two processes that write one target do not write one file, and :func:`sweep` can tell
    what nobody is writing any more.
    """
    return target.with_name(f".{target.name}.{socket.gethostname()}.{os.getpid()}{_SUFFIX}")


def sweep(folder: Path, name: str = "", *, alone: bool = False) -> None:
    """Remove what killed processes left half written in a folder.

    Args:
        folder: may be missing.
        name: of the only target that matters.
        alone: nobody else may write here, so that what other machines and older versions left is dead, too, and what
            has the number of this process was left by one before it.
    """
    for file in folder.glob(f".{glob.escape(name)}.*{_SUFFIX}" if name else f".*{_SUFFIX}"):
        owner, _, pid = file.name.removesuffix(_SUFFIX).rpartition(".")
        if pid.isdigit() and owner.endswith(f".{socket.gethostname()}"):
            dead = alone if int(pid) == os.getpid() else not alive(int(pid))
        else:
            dead = alone
        if dead:
            remove(file)


def alive(pid: int) -> bool:
    """Whether a process of this number runs on this machine; one that is only waited for does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except FileNotFoundError:
        return False
    except OSError:  # it ended in this moment, or is hidden: another user's
        return Path(f"/proc/{pid}").exists()
    return stat.rpartition(b")")[2].split()[0] not in (b"Z", b"X")


def remove(path: Path) -> None:
    """A file or a folder, if there is one; another process may be at it, too."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def share(weights: Path, like: Path) -> None:
    """Give weights the mode of another file, which the umask decided: safetensors writes for this user alone.

    Args:
        weights: a folder; its ``*.safetensors`` are meant.
        like: a file that was written in the usual way.
    """
    for file in weights.glob("*.safetensors"):
        file.chmod(stat.S_IMODE(like.stat().st_mode))
