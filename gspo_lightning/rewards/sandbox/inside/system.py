"""The few system calls that Python does not offer, through the C library."""

from __future__ import annotations

import ctypes
import os
import struct

CLONE_NEWNS = 0x00020000
CLONE_NEWIPC = 0x08000000
CLONE_NEWPID = 0x20000000
MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
_MS_BIND = 4096
_MS_REC = 16384

_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_CLEAR_ALL = 4
_CAPABILITIES_VERSION_3 = 0x20080522
_libc = ctypes.CDLL(None, use_errno=True)


def call(name: str, *arguments: object) -> int:
    """Call a function of the C library that returns -1 on failure.

    Raises:
        OSError: with the error number and the name of the call.
    """
    result: int = getattr(_libc, name)(*arguments)
    if result == -1:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")
    return result


def syscall(number: int, *arguments: object) -> int:
    """Make a system call by number."""
    return call("syscall", ctypes.c_long(number), *arguments)


def prctl(option: int, *values: int) -> int:
    """Call ``prctl(2)``; missing arguments are 0."""
    return call("prctl", option, *(ctypes.c_ulong(v) for v in (*values, 0, 0, 0, 0)[:4]))


def unshare(flags: int) -> None:
    """Leave namespaces for new ones."""
    call("unshare", flags)


def mount(kind: str, target: str, flags: int, options: str = "") -> None:
    """Mount a virtual file system."""
    call("mount", kind.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), options.encode())


def bind(source: str, target: str) -> None:
    """Show a file or folder, with all that is mounted below it, in another place; what is read-only stays so."""
    call("mount", source.encode(), os.fsencode(target), None, ctypes.c_ulong(_MS_BIND | _MS_REC), None)


def no_new_privileges() -> None:
    """Forbid programs that are executed from here on to gain privileges."""
    prctl(_PR_SET_NO_NEW_PRIVS, 1)


def drop_capabilities() -> None:
    """Drop all privileges for good."""
    no_new_privileges()
    prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    call("capset", struct.pack("=Ii", _CAPABILITIES_VERSION_3, 0), bytes(24))
