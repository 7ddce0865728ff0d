"""What a hostile program is in these tests: its text, and for each isolation the layer that stops it, and how.

Every program is bounded in count, seconds and memory, and what it reads or writes belongs to the test, so that it does
no harm even with its layer left out. None runs outside a sandbox.
"""

from __future__ import annotations

from dataclasses import dataclass

from gspo_lightning.rewards.sandbox import End, Outcome

__all__ = ["Hostile", "Stopped", "verdict"]

PRELUDE = """
import ctypes, errno, json, os, signal, socket, sys, time
target = json.load(sys.stdin)


def attempt(what, do):
    try:
        result = do()
    except OSError as error:
        print(what, errno.errorcode.get(error.errno, error.errno))
    else:
        print(what, "DONE")
        return result


def syscall(x86_64, aarch64, *arguments):
    number = x86_64 if os.uname().machine == "x86_64" else aarch64
    result = libc.syscall(ctypes.c_long(number), *map(ctypes.c_void_p, arguments))
    if result == -1:
        raise OSError(ctypes.get_errno(), "")
    return result


libc = ctypes.CDLL(None, use_errno=True)
"""
"""``target``: paths, ports and process ids of the test; ``attempt`` prints the error's name or DONE."""


@dataclass(frozen=True)
class Stopped:
    """By which layers (all that stop it in the same way), and what is seen of that: end, output, detail."""

    layer: str
    evidence: str
    root_only: bool = False

    @property
    def layers(self) -> tuple[str, ...]:
        """Left out together in the second run; none where that would not be safe."""
        return tuple(self.layer.split("+")) if self.layer else ()


@dataclass(frozen=True)
class Hostile:
    """One property: ``bubblewrap`` and ``landlock`` say what stops it there; None where it has no meaning."""

    name: str
    body: str
    bubblewrap: Stopped | None
    landlock: Stopped | None

    @property
    def source(self) -> str:
        """The program."""
        return PRELUDE + self.body


def verdict(outcome: Outcome) -> str:
    """What is recorded of a run."""
    parts = [outcome.end.value, *outcome.stdout[:200].split()]
    return " ".join(parts if outcome.end is End.FINISHED else [*parts, *outcome.detail.split()])
