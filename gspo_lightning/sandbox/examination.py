"""Tests that are scripts: the program and the script run in two sandboxes that talk to each other."""

from __future__ import annotations

import marshal
import select
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace

from gspo_lightning.errors import InfrastructureError
from gspo_lightning.sandbox.limits import End, Limits, Outcome
from gspo_lightning.sandbox.probe import Isolation
from gspo_lightning.sandbox.process import Sandbox

_END = marshal.dumps(("end", None, False, (), {}))


@dataclass(frozen=True, slots=True)
class Script:
    """Test code that must run to its end.

    ``names`` maps each name that the script uses to its name in the program. ``classes`` are the names that the script
    instantiates: these are under test.
    """

    text: str
    names: Mapping[str, str]
    classes: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of a script: ``passed`` or not; ``broken`` is the reason if the script itself is at fault.

    ``outcome`` is how the program ended, if it ended before the script; ``cpu_s`` is the script's own CPU time.
    """

    passed: bool
    outcome: Outcome
    broken: str = ""
    cpu_s: float = 0.0


def examine(isolation: Isolation, program: str, script: Script, limits: Limits) -> Verdict:
    """Run a script whose calls a program answers; the program sees the arguments of the calls and nothing else.

    Raises:
        InfrastructureError: a sandbox failed, or the machine had no time for it.
    """
    kind, python = isolation.kind, isolation.python
    theirs, ours = socket.socketpair()
    judging = replace(limits, cpu_s=2 * limits.cpu_s + 10, memory_mb=max(limits.memory_mb, 1024))
    with (
        theirs,
        ours,
        Sandbox(kind, python, program, limits, channel=theirs.fileno(), role="serve") as box,
        Sandbox(kind, python, script.text, judging, channel=ours.fileno(), role="examine") as judge,
    ):
        box.begin({"serve": True})
        judge.begin({"examine": {"names": dict(script.names), "classes": sorted(script.classes)}})
        ready = select.select([box, judge], [], [], judging.patience_s)[0]
        if not ready:
            raise InfrastructureError("a test that is a script does not end")
        if judge not in ready:
            judge.abandon()
            return Verdict(False, _early(box.outcome()))
        found = judge.outcome()
        verdict, why = _read(found)
        if box in ready and verdict != "passed":
            return Verdict(False, _early(box.outcome()))
        ours.sendall(len(_END).to_bytes(4, "big") + _END)
        if select.select([box], [], [], 1.0)[0]:
            outcome = box.outcome()
        else:
            box.abandon()
            outcome = Outcome(End.FINISHED)
        return Verdict(
            verdict == "passed", replace(outcome, end=End.FINISHED), why if verdict == "broken" else "", found.cpu_s
        )


def _early(outcome: Outcome) -> Outcome:
    """Count a program that ends before it is told to as failed, whatever its exit code."""
    return replace(outcome, end=End.RUNTIME_ERROR) if outcome.end is End.FINISHED else outcome


def _read(found: Outcome) -> tuple[str, str]:
    """Return the script's verdict and reason; "failed" if its process was ended: the program's values were too much."""
    if found.end is End.FINISHED and isinstance(found.value, list) and len(found.value) == 2:
        return str(found.value[0]), str(found.value[1])
    return "failed", found.detail
