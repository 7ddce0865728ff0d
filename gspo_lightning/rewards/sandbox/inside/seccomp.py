"""System-call filter: allow calls by name, refuse everything else.

The filter is assembled here rather than by libseccomp: it is applied inside, in a process that has just the standard
library, and it is short enough to read. Refused calls fail with EPERM; a foreign instruction set (and the x32 numbers
of x86_64) kills the process.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct

from gspo_lightning.rewards.sandbox.inside.syscalls import AGENT, ALWAYS, CONDITIONAL, METADATA, SERVING, numbers
from gspo_lightning.rewards.sandbox.inside.system import prctl

_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_LOAD = 0x20
_EQUAL = 0x15
_AT_LEAST = 0x35
_ANY_BIT = 0x45
_AND = 0x54
_RETURN = 0x06
_ALLOW = 0x7FFF0000
_KILL = 0x80000000
_ERRNO = 0x00050000
_X32 = 0x40000000
_CLONE_NAMESPACES = 0x7E020080
"""CLONE_NEW{NS,CGROUP,UTS,IPC,USER,PID,NET} and CLONE_NEWTIME."""
_CLONE_THREAD = 0x00010000
_AF_UNIX = 1
_AF_INET = 2
_AF_INET6 = 10
_SOCK_STREAM = 1
_SOCK_DGRAM = 2
_IPPROTO_TCP = 6
_IPPROTO_UDP = 17
_MSG_FASTOPEN = 0x20000000
_IOCTLS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
"""TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX."""
_PRCTLS = (15, 16)
"""PR_SET_NAME, PR_GET_NAME."""
_OWNERS = (8, 10, 15)
"""F_SETOWN, F_SETSIG, F_SETOWN_EX: they make a file descriptor signal another process."""
_MAP_SHARED = 0x01
_MAP_ANONYMOUS = 0x20
_MAP_HUGETLB = 0x40000
_OUT_OF_SIGHT = (20, 21)
"""MADV_COLD, MADV_PAGEOUT: memory that is neither freed nor resident."""
_SIGCHLD = 17
_PR_SET_SECCOMP = 22
_SECCOMP_MODE_FILTER = 2

Instruction = tuple[int, int, int, int]

_NO_NAMESPACES: list[Instruction] = [
    (_LOAD, 0, 0, 16),
    (_ANY_BIT, 1, 0, _CLONE_NAMESPACES),
    (_RETURN, 0, 0, _ALLOW),
]
_OWN_MEMORY: list[Instruction] = [
    (_LOAD, 0, 0, 40),
    (_ANY_BIT, 3, 0, _MAP_HUGETLB),
    (_ANY_BIT, 0, 1, _MAP_ANONYMOUS),
    (_ANY_BIT, 1, 0, _MAP_SHARED),
    (_RETURN, 0, 0, _ALLOW),
]
"""``mmap``, except for memory that no limit sees.

Shared memory without a file stays as long as one of its pages is mapped, and is then neither resident nor in the
address space; huge pages are never counted as resident.
"""
_CHILDREN_COUNT: list[Instruction] = [
    (_LOAD, 0, 0, 16),
    (_EQUAL, 0, 4, _SIGCHLD),
    (_LOAD, 0, 0, 24),
    (_EQUAL, 0, 3, 0),
    (_LOAD, 0, 0, 28),
    (_EQUAL, 0, 1, 0),
    (_RETURN, 0, 0, _ALLOW),
]
"""``rt_sigaction``, except for SIGCHLD.

If that is ignored, the kernel forgets what an ended child has used, and its parent is not charged.
"""


def assemble(machine: str, *, only_process: int | None = None, executes: bool = False) -> bytes:
    """Assemble a classic BPF program.

    Args:
        machine: ``os.uname().machine``.
        only_process: the process may create threads but no other process, signals only itself (this process
            id), and changes no file's mode, owner or times by name. For isolation without namespaces.
        executes: the process may start programs, and signals none. For the compiler.

    Raises:
        KeyError: a machine without a table of system calls.
    """
    code = _beginning(machine)
    some = numbers(CONDITIONAL, machine)
    for number in numbers(ALWAYS if only_process is not None else ALWAYS + METADATA, machine).values():
        code += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ALLOW)]
    code += _common(some)
    if executes:
        code += _when(some["clone"], _NO_NAMESPACES)
        code += _unless_argument(some["fcntl"], 1, _OWNERS)
        free = ["setrlimit", "fork", "vfork", "execve", "rt_sigaction"]
    elif only_process is None:
        code += _when(some["rt_sigaction"], _CHILDREN_COUNT)
        code += _when(some["clone"], _NO_NAMESPACES)
        free = ["setrlimit", "fcntl", "fork", "vfork", "kill", "tkill", "tgkill"]
    else:
        code += _when(some["clone"], [_load(16), (_ANY_BIT, 0, 1, _CLONE_THREAD), (_RETURN, 0, 0, _ALLOW)])
        code += _if_argument(some["kill"], 0, (only_process,))
        code += _unless_argument(some["fcntl"], 1, _OWNERS)
        code += _if_argument(some["tgkill"], 0, (only_process,))
        free = ["setrlimit", "rt_sigaction"]
    for name in free:
        if name in some:
            code += [(_EQUAL, 0, 1, some[name]), (_RETURN, 0, 0, _ALLOW)]
    code.append(_refuse())
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in code)


def _beginning(machine: str) -> list[Instruction]:
    """Return the instructions that kill calls of other architectures and load the number of the call."""
    code: list[Instruction] = [
        _load(4),
        (_EQUAL, 1, 0, _AUDIT_ARCH[machine]),
        (_RETURN, 0, 0, _KILL),
        _load(0),
    ]
    if machine == "x86_64":
        code += [(_AT_LEAST, 0, 1, _X32), (_RETURN, 0, 0, _KILL)]
    return code


def _common(some: dict[str, int]) -> list[Instruction]:
    """Return the instructions for calls that all programs may make with some arguments."""
    code = [(_EQUAL, 0, 1, some["clone3"]), (_RETURN, 0, 0, _ERRNO | errno.ENOSYS)]  # its flags are in memory
    code += _if_argument(some["ioctl"], 1, _IOCTLS)
    code += _if_argument(some["prctl"], 0, _PRCTLS)
    code += _if_argument(some["prlimit64"], 0, (0,))
    code += _if_argument(some["socketpair"], 0, (_AF_UNIX,))
    code += _when(some["mmap"], _OWN_MEMORY)
    return code + _unless_argument(some["madvise"], 2, _OUT_OF_SIGHT)


def assemble_agent(machine: str, *, namespaces: bool, signals: bool) -> bytes:
    """Assemble the filter of an agent's command, which may start programs and use TCP.

    Args:
        machine: ``os.uname().machine``.
        namespaces: it has processes and a network of its own. Without, it makes TCP connections and no other use of
            sockets, because Landlock restricts nothing else.
        signals: without namespaces, signals cannot leave it.

    Raises:
        KeyError: a machine without a table of system calls.
    """
    code = _beginning(machine)
    some = numbers(CONDITIONAL, machine)
    if not namespaces:  # a connection that opens with its first data asks Landlock nothing
        for name, argument in (("sendto", 3), ("sendmsg", 2)):
            code += _when(
                some[name], [_load(16 + 8 * argument), (_ANY_BIT, 1, 0, _MSG_FASTOPEN), (_RETURN, 0, 0, _ALLOW)]
            )
    free = numbers(ALWAYS + AGENT + (METADATA + SERVING if namespaces else ""), machine)
    if signals:
        free |= {name: some[name] for name in ("kill", "tkill", "tgkill")}
    for number in free.values():
        code += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ALLOW)]
    code += _common(some)
    code += _when(some["clone"], _NO_NAMESPACES)
    if not namespaces:
        code += _unless_argument(some["fcntl"], 1, _OWNERS)
    code += _when(some["socket"], _sockets(namespaces))
    code.append(_refuse())
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in code)


def _sockets(namespaces: bool) -> list[Instruction]:
    """Return the body for ``socket``: families, types and protocols, every other one refused."""
    families = (_AF_INET, _AF_INET6, *[_AF_UNIX] * namespaces)
    types = (_SOCK_STREAM, *[_SOCK_DGRAM] * namespaces)
    protocols = (0, _IPPROTO_TCP, *[_IPPROTO_UDP] * namespaces)
    body: list[Instruction] = []
    for before, allowed in (([_load(16)], families), ([_load(24), (_AND, 0, 0, 0xF)], types), ([_load(32)], protocols)):
        body += before
        body += [(_EQUAL, len(allowed) - i, 0, value) for i, value in enumerate(allowed)]
        body.append(_refuse())
    return [*body, (_RETURN, 0, 0, _ALLOW)]


def apply(program: bytes) -> None:
    """Filter this process and all that it starts, for ever; it must have given up new privileges before.

    Raises:
        OSError: the kernel refuses the filter.
    """
    buffer = ctypes.create_string_buffer(program, len(program))
    header = ctypes.create_string_buffer(struct.pack("@HxxxxxxP", len(program) // 8, ctypes.addressof(buffer)))
    prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(header))


def agent_filter(*, namespaces: bool, signals: bool) -> bytes:
    """Return the filter of an agent's command on this machine."""
    return assemble_agent(os.uname().machine, namespaces=namespaces, signals=signals)


def own_filter(*, alone: bool, executes: bool = False) -> bytes:
    """Return the filter for this process; ``alone``: without other processes; ``executes``: for the compiler."""
    return assemble(os.uname().machine, only_process=os.getpid() if alone else None, executes=executes)


def _load(offset: int) -> Instruction:
    """Load 32 bits of ``struct seccomp_data``: number at 0, architecture at 4, low half of argument i at 16 + 8 i."""
    return (_LOAD, 0, 0, offset)


def _refuse() -> Instruction:
    return (_RETURN, 0, 0, _ERRNO | errno.EPERM)


def _when(number: int, body: list[Instruction]) -> list[Instruction]:
    """Run the body for this call; the call is refused if the body does not return."""
    return [(_EQUAL, 0, len(body) + 1, number), *body, _refuse()]


def _if_argument(number: int, argument: int, allowed: tuple[int, ...]) -> list[Instruction]:
    body: list[Instruction] = [_load(16 + 8 * argument)]
    for value in allowed:
        body += [(_EQUAL, 0, 1, value), (_RETURN, 0, 0, _ALLOW)]
    return _when(number, body)


def _unless_argument(number: int, argument: int, refused: tuple[int, ...]) -> list[Instruction]:
    body: list[Instruction] = [_load(16 + 8 * argument)]
    for value in refused:
        body += [(_EQUAL, 0, 1, value), _refuse()]
    return _when(number, [*body, (_RETURN, 0, 0, _ALLOW)])
