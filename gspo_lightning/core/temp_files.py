"""Temporary files of unfinished writes: their paths, their owners, and removal of abandoned ones.

Nothing here imports torch: commands that start without it write files, too.
"""

from __future__ import annotations

import glob
import os
import shutil
import socket
import stat
from pathlib import Path

_SUFFIX = ".unfinished"


def temp_path(target: Path) -> Path:
    """Return the temporary path of ``target``: in the same folder, so the swap is one rename.

    The name states the owner: two processes that write one target use different files, and :func:`sweep` recognises
    abandoned ones.
    """
    return target.with_name(f".{target.name}.{socket.gethostname()}.{os.getpid()}{_SUFFIX}")


def sweep(folder: Path, name: str = "", *, alone: bool = False) -> None:
    """Remove the temporary files that killed processes left in a folder.

    Args:
        folder: may be missing.
        name: the only target to clean up.
        alone: nobody else may write here, so files of other machines and older versions are abandoned, too, and a file
            with this process's id was left by an earlier process with the same id.
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
    """True if a process of this id runs on this machine; a zombie does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except FileNotFoundError:
        return False
    except OSError:  # it ended in this moment, or is hidden: another user's
        return Path(f"/proc/{pid}").exists()
    return stat.rpartition(b")")[2].split()[0] not in (b"Z", b"X")


def remove(path: Path) -> None:
    """Remove a file or a folder, if it exists; another process may do so at the same time."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def share(weights: Path, like: Path) -> None:
    """Give weights the file mode of another file, which follows the umask: safetensors writes for this user alone.

    Args:
        weights: a folder with ``*.safetensors`` files.
        like: a file that was written in the usual way.
    """
    for file in weights.glob("*.safetensors"):
        file.chmod(stat.S_IMODE(like.stat().st_mode))
