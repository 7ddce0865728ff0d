"""Start a sandbox: the command line of each kind of isolation."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import IO, Any

NOBODY = 65534
"""User and group of programs if this process is root; also the user that programs see in a namespace."""
INSIDE = Path(__file__).parent / "inside"
_NAME = "gspo_lightning.rewards.sandbox.inside"
_LAUNCH = f"""
import sys, types
parts = "{_NAME}".split(".")
for n in range(1, len(parts) + 1):
    module = sys.modules[".".join(parts[:n])] = types.ModuleType(".".join(parts[:n]))
    module.__path__ = [sys.argv[1]] if n == len(parts) else []
from {_NAME} import driver
driver.main(int(sys.argv[2]))
"""
"""Import the folder under its name, but nothing else of the package."""
_LIBRARIES = ("/lib", "/lib32", "/lib64", "/usr/lib", "/usr/lib32", "/usr/lib64", "/etc/ld.so.cache")
_DEVICES = ("/dev/null", "/dev/full", "/dev/random", "/dev/urandom")


class Kind(StrEnum):
    """Isolation between programs and the machine."""

    BUBBLEWRAP = "bubblewrap"
    """Namespaces (files, network, processes), a system-call filter, and limits. The best isolation."""
    LANDLOCK = "landlock"
    """Landlock for files, a system-call filter that forbids other processes, and limits."""
    UNSAFE = "unsafe"
    """Limits only: the program can read and write whatever this user can. For trusted programs."""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python interpreter for programs: its executable, the folder of its library, and packages for programs.

    ``packages`` are pairs of a name and the paths that the package needs, its own folder first; ``tools`` are the
    paths that a compiler needs; ``agent`` are those of an agent's command.
    """

    executable: str
    prefix: str
    packages: tuple[tuple[str, tuple[str, ...]], ...] = ()
    tools: tuple[str, ...] = ()
    agent: tuple[str, ...] = ()

    @classmethod
    def own(cls) -> Interpreter:
        """Return the interpreter of this process, without its virtual environment."""
        return cls(os.path.realpath(sys.executable), os.path.realpath(sys.base_prefix))

    @property
    def readable(self) -> list[str]:
        """Paths of the machine that the interpreter needs to read."""
        needed = [path for path in _LIBRARIES if os.path.exists(path)]
        needed += [path for _, paths in self.packages for path in paths]
        readable = [self.prefix, *(path for path in needed if not _below(path, self.prefix))]
        readable = [path for path in readable if not os.path.islink(path)]
        for path in (*self.tools, *self.agent):  # bubblewrap binds the target of a link
            if not any(_below(path, folder) for folder in readable):
                readable.append(path)
        return readable

    @property
    def command(self) -> list[str]:
        """Command of the interpreter, isolated from the user's settings and packages."""
        return [self.executable, "-I", "-S", "-B", "-X", "utf8", "-c", _LAUNCH]


def start(
    kind: Kind, python: Interpreter, layers: Collection[str], errors: IO[bytes], channel: int = -1
) -> subprocess.Popen[bytes]:
    """Start a driver with pipes on its stdin and stdout; it ends with the thread that calls this.

    Args:
        kind: the isolation.
        python: the interpreter.
        layers: the layers to apply.
        errors: receives its stderr.
        channel: a file descriptor to pass on, or -1.

    Raises:
        OSError: the driver cannot be started.
    """
    drop = program_user(kind, layers) is not None
    clean: dict[str, str] | None = {} if "environment" in layers else None
    if kind is Kind.BUBBLEWRAP and drop:
        return _start_as_root(python, layers, errors, clean, channel)
    if kind is Kind.BUBBLEWRAP:
        command = _bubblewrap(python, layers, "--uid", str(NOBODY), "--gid", str(NOBODY))
    else:
        command = [*python.command, str(INSIDE), str(os.getpid())]
    user: dict[str, Any] = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if drop else {}
    return _popen(command, errors, clean, pass_fds=[channel] * (channel >= 0), **user)


def program_user(kind: Kind, layers: Collection[str]) -> int | None:
    """Return the user that a program must switch to, or None if this process is not root and cannot switch."""
    return NOBODY if os.geteuid() == 0 and "uid" in layers and kind is not Kind.UNSAFE else None


def _popen(command: list[str], errors: IO[bytes], env: dict[str, str] | None, **more: Any) -> subprocess.Popen[bytes]:
    """Start a process in this process group: ending a worker by its group also ends a sandbox that is starting."""
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=errors, bufsize=0, cwd="/", env=env, **more)


def _start_as_root(
    python: Interpreter, layers: Collection[str], errors: IO[bytes], env: dict[str, str] | None, channel: int
) -> subprocess.Popen[bytes]:
    """Start in a user namespace with two users: root for the driver (it reads the interpreter), nobody for programs.

    With only one user, the program would still be root to the machine's files, and its number of processes would not be
    limited. Bubblewrap waits until this process has written the user map.
    """
    go_read, go_write = os.pipe()
    info_read, info_write = os.pipe()
    try:
        waits = ["--userns-block-fd", str(go_read), "--info-fd", str(info_write)]
        command = _bubblewrap(python, layers, *waits, "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID")
        process = _popen(command, errors, env, pass_fds=[go_read, info_write, *[channel] * (channel >= 0)])
        os.close(info_write)
        info_write = -1
        info = b""
        while b"}" not in info:
            piece = os.read(info_read, 4096)
            if not piece:  # it failed; the reason is reported when the driver is awaited
                return process
            info += piece
        child = json.loads(info)["child-pid"]
        try:
            for name in ("uid_map", "gid_map"):
                Path(f"/proc/{child}/{name}").write_text(f"0 0 1\n{NOBODY} {NOBODY} 1\n")
        except OSError:  # a user namespace with more than one user is forbidden here: it would wait for ever
            os.kill(child, signal.SIGKILL)
            process.kill()
            process.communicate()
            raise
        os.write(go_write, b"1")
        return process
    finally:
        for descriptor in (go_read, go_write, info_read, info_write):
            if descriptor >= 0:
                os.close(descriptor)


def _bubblewrap(python: Interpreter, layers: Collection[str], *users: str) -> list[str]:
    """Return the bubblewrap command: an empty root with only the interpreter, and no other process to talk to.

    The driver keeps the capability to make namespaces for each test, inside its own user namespace only; the test's
    process has none.
    """
    program = shutil.which("bwrap")
    if program is None:  # with no environment of its own, a process would look beyond PATH
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "bwrap")
    words = [
        program,
        "--unshare-user",
        "--unshare-ipc",
        "--unshare-uts",
        "--unshare-cgroup-try",
        "--unshare-pid",
    ]
    words += [*users, "--cap-add", "CAP_SYS_ADMIN", "--as-pid-1", "--die-with-parent", "--new-session"]
    words += ["--hostname", "sandbox"]
    words += ["--unshare-net"] * ("network" in layers) + ["--clearenv"] * ("environment" in layers)
    if "files" in layers:
        words += ["--perms", "0755", "--dir", "/dev"]
        for path in (*python.readable, str(INSIDE)):
            place = _place(path)
            for folder in reversed(place.parents[:-1]):  # bubblewrap's own folders are open to their owner only
                words += ["--perms", "0755", "--dir", str(folder)]
            words += ["--ro-bind", path, str(place)]
        for path in _LIBRARIES:
            if os.path.islink(path) and not _below(path, python.prefix):
                words += ["--symlink", os.readlink(path), path]
        for path in _DEVICES[: 1 if python.tools else None]:  # a compiler would read endless devices for ever
            words += ["--dev-bind", path, path]
        words += ["--symlink", "/proc/self/fd", "/dev/fd", "--symlink", "/tmp", "/dev/shm", "--dir", "/tmp"]
        for number, name in enumerate(("stdin", "stdout", "stderr")):
            words += ["--symlink", f"/proc/self/fd/{number}", f"/dev/{name}"]
    else:
        words += ["--ro-bind", "/", "/"]
    words += ["--proc", "/proc", "--remount-ro", "/", "--chdir", "/", "--"]
    return [*words, *python.command, str(INSIDE), "0"]


def _place(path: str) -> Path:
    """Return where a path of the machine is mounted inside, where /dev/shm is a link to /tmp."""
    return Path("/tmp", Path(path).relative_to("/dev/shm")) if _below(path, "/dev/shm") else Path(path)


def _below(path: str, folder: str) -> bool:
    return Path(path).is_relative_to(folder)
