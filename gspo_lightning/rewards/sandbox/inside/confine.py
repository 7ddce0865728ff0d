"""Confine a test's process before it runs a line of the program. Tests can leave out each layer."""

from __future__ import annotations

import os
import resource

from gspo_lightning.rewards.sandbox.inside import landlock, seccomp, system

TYPE_CHECKING = False  # importing typing would take longer than all of this
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from typing import Any

_MEBIBYTE = 1 << 20
_STACK_MB = 64
_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_SIGKILL = 9
_COVERED = ("/tmp/", "/dev/shm/")
"""Folders that the working directory takes the place of: the second is a link to the first in a root of bubblewrap."""


def confine(setup: Mapping[str, Any], directory: str, *, several: bool = False) -> None:
    """Apply the layers: private namespaces if there are any, limits, no privileges, no files, only plain system calls.

    Args:
        setup: of the program.
        directory: its working directory.
        several: the process runs several tests, and the kernel's limit of CPU time is that of all of them.

    Raises:
        OSError: a layer could not be applied; the program must not run then.
    """
    layers: Collection[str] = setup["layers"]
    with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")  # short of memory, the kernel ends the program first
    if setup["namespaces"]:
        _private_mounts(setup["limits"], layers, setup["readable"])
    else:
        system.prctl(_PR_SET_PDEATHSIG, _SIGKILL)
        os.setsid()
    os.chdir(directory)
    os.umask(0o077)
    limit(setup["limits"], layers, several=several)
    if setup["user"] is not None:
        os.setgroups([])
        os.setresgid(setup["user"], setup["user"], setup["user"])
        os.setresuid(setup["user"], setup["user"], setup["user"])
        system.prctl(_PR_SET_DUMPABLE, 1)  # its own /proc/self/fd, and so /dev/stdin, would be closed to it
    if "privileges" in layers:
        system.drop_capabilities()
    if "landlock" in layers:
        executes = setup["role"] in ("compiler", "agent")
        landlock.restrict(setup["readable"], directory, executes=executes, ports=setup.get("ports", ()))
    if "seccomp" in layers:
        seccomp.apply(setup.get("filter") or seccomp.own_filter(alone=True))


def _private_mounts(limits: Mapping[str, Any], layers: Collection[str], readable: Collection[str]) -> None:
    """Mount a working directory of bounded size that ends with this process, and a /proc that shows this process only.

    That /proc is read-only: otherwise a process could undo that it is the first to end when memory is short. Readable
    paths that the working directory would hide are shown in it, read-only as before.
    """
    system.unshare(system.CLONE_NEWNS | system.CLONE_NEWIPC)
    safe = system.MS_NOSUID | system.MS_NODEV
    if "disk" in layers:
        size = f"size={limits['disk_mb']}m,nr_inodes={limits['files']},mode=1777"
        hidden = {path: os.open(path, os.O_PATH | os.O_CLOEXEC) for path in readable if path.startswith(_COVERED)}
        system.mount("tmpfs", "/tmp", safe, size)
        for path, original in hidden.items():
            _show(path, original)
    if "processes" in layers:
        system.mount("proc", "/proc", safe | system.MS_NOEXEC | system.MS_RDONLY)


def _show(path: str, original: int) -> None:
    """Bind an open file or folder to its path, which is hidden now; the folders above it belong to the driver."""
    os.umask(0o022)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    source = f"/proc/self/fd/{original}"
    if not os.path.lexists(path):
        if os.path.isdir(source):
            os.mkdir(path)
        else:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL, 0o644))
    system.bind(source, path)
    os.close(original)


def limit(limits: Mapping[str, Any], layers: Collection[str], *, several: bool = False) -> None:
    """Set the kernel's limits; memory counts from what the interpreter has mapped already."""
    seconds = limits["process_cpu_s"] if several else limits["cpu_s"]
    values = {
        "cpu": (resource.RLIMIT_CPU, int(seconds) + 2),
        "memory": (resource.RLIMIT_AS, limits["memory_mb"] * _MEBIBYTE + _address_space()),
        "tasks": (resource.RLIMIT_NPROC, limits["tasks"]),
        "output": (resource.RLIMIT_FSIZE, limits["file_mb"] * _MEBIBYTE),
        "descriptors": (resource.RLIMIT_NOFILE, limits["descriptors"]),
        "core": (resource.RLIMIT_CORE, 0),
        "queues": (resource.RLIMIT_MSGQUEUE, 0),
        "locked": (resource.RLIMIT_MEMLOCK, 0),
    }
    _, hard = resource.getrlimit(resource.RLIMIT_STACK)
    stack = _STACK_MB * _MEBIBYTE
    resource.setrlimit(resource.RLIMIT_STACK, (stack if hard == resource.RLIM_INFINITY else min(stack, hard), hard))
    for name, (kind, value) in values.items():
        if name in layers:
            _, hard = resource.getrlimit(kind)
            value = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(kind, (value, value))


def _address_space() -> int:
    """Return the mapped bytes."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[0]) * resource.getpagesize()
