"""Landlock: the files that a process may touch, without a mount namespace (landlock(7))."""

from __future__ import annotations

import errno
import os
import struct

from gspo_lightning.rewards.sandbox.inside.system import syscall

TYPE_CHECKING = False  # importing typing would take longer than all of this
if TYPE_CHECKING:
    from collections.abc import Sequence

LEAST_ABI = 3
"""Linux 6.2; before it, a file could be truncated by name."""
AGENTS_ABI = 4
"""Linux 6.7; before it, TCP could not be restricted to a port."""

_CREATE_RULESET = 444
_ADD_RULE = 445
_RESTRICT_SELF = 446
_EXECUTE = 1 << 0
_WRITE_FILE = 1 << 1
_READ_FILE = 1 << 2
_READ_DIR = 1 << 3
_REMOVE_FILE = 1 << 5
_MAKE_REG = 1 << 8
_TRUNCATE = 1 << 14
_PATH_BENEATH = 1
_NET_PORT = 2
_ASK_VERSION = 1
_CONNECT_TCP = 1 << 1
_NONE = "the kernel has no Landlock, or has turned it off"
_RIGHTS = {3: 15, 4: 15, 5: 16}
"""ABI -> number of rights on files (the lowest bits)."""


def abi() -> int:
    """Return the Landlock version of the kernel, or 0."""
    try:
        return syscall(_CREATE_RULESET, None, 0, _ASK_VERSION)
    except OSError:
        return 0


def restrict(readable: Sequence[str], writable: str, *, executes: bool = False, ports: Sequence[int] = ()) -> None:
    """Restrict this process to read only below some folders and make plain files in one; no signals out.

    ``executes``: readable files may be executed, too. ``ports``: TCP may connect to these and to no other.

    Raises:
        OSError: the kernel refuses, or its Landlock is older than :data:`LEAST_ABI`.
    """
    version = abi()
    least = AGENTS_ABI if ports else LEAST_ABI
    if version < least:
        state = f"the kernel's Landlock is version {version}" if version else _NONE
        raise OSError(errno.ENOSYS, f"{state}; version {least} is needed (Linux {'6.7' if ports else '6.2'})")
    files = (1 << _RIGHTS[min(version, 5)]) - 1
    network = 3 if version >= 4 else 0  # bind and connect
    scopes = 3 if version >= 6 else 0  # abstract sockets and signals
    # the kernel refuses fields that its version does not know
    if version >= 6:
        size = 24
    else:
        size = 16 if version >= 4 else 8
    rules = syscall(_CREATE_RULESET, struct.pack("=QQQ", files, network, scopes), size, 0)
    for path in readable:
        allow(rules, path, _READ_FILE | (_EXECUTE * executes) | (_READ_DIR if os.path.isdir(path) else 0))
    allow(rules, "/dev/null", _READ_FILE | _WRITE_FILE)
    allow(rules, writable, _READ_FILE | _READ_DIR | _WRITE_FILE | _REMOVE_FILE | _MAKE_REG | _TRUNCATE)
    for port in ports:
        syscall(_ADD_RULE, rules, _NET_PORT, struct.pack("=QQ", _CONNECT_TCP, port), 0)
    syscall(_RESTRICT_SELF, rules, 0)
    os.close(rules)


def allow(rules: int, path: str, rights: int) -> None:
    """Add a rule for everything below a path."""
    beneath = os.open(path, os.O_PATH | os.O_CLOEXEC)
    syscall(_ADD_RULE, rules, _PATH_BENEATH, struct.pack("=Qi", rights, beneath), 0)
    os.close(beneath)
