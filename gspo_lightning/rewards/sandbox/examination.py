"""Tests that are scripts: the program and the script run in two sandboxes that talk to each other.

A script has a sandbox of its own. The program's process answers one script after another, like all tests that share it.
"""

from __future__ import annotations

import marshal
import select
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace

from gspo_lightning.core.errors import InfrastructureError
from gspo_lightning.rewards.sandbox.limits import End, Limits, Outcome
from gspo_lightning.rewards.sandbox.probe import Isolation
from gspo_lightning.rewards.sandbox.process import Sandbox

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
    ``changed``: a call changed an argument and returned a value, and the script did not see the change.
    """

    passed: bool
    outcome: Outcome
    broken: str = ""
    cpu_s: float = 0.0
    changed: bool = False


def examine(
    isolation: Isolation, box: Sandbox, channel: socket.socket, script: Script, limits: Limits, *, changes: bool = False
) -> Verdict:
    """Run a script whose calls a program answers; the program sees the arguments of the calls and nothing else.

    Args:
        isolation: of the script's sandbox.
        box: the program's sandbox, in the role ``serve``; abandoned if its program has not returned from the last call.
        channel: the script's side of the channel.
        script: must run to its end.
        limits: of a test of the program.
        changes: a list, dict or set that the program changes in a call changes in the script, whatever it returns.

    Raises:
        InfrastructureError: a sandbox failed, or the machine had no time for it.
    """
    judging = replace(limits, cpu_s=2 * limits.cpu_s + 10, memory_mb=max(limits.memory_mb, 1024))
    with Sandbox(
        isolation.kind, isolation.python, script.text, judging, channel=channel.fileno(), role="examine"
    ) as judge:
        box.begin({"serve": True, "shares": True})
        names = {"names": dict(script.names), "classes": sorted(script.classes), "changes": changes}
        judge.begin({"examine": names})
        ready = select.select([box, judge], [], [], judging.patience_s)[0]
        if not ready:
            raise InfrastructureError("a test that is a script does not end")
        if judge not in ready:
            judge.abandon()
            return Verdict(False, _early(box.outcome()))
        judged = judge.outcome()
        verdict, why, changed = _read(judged)
        if box in ready:
            return Verdict(False, _early(box.outcome()))
        if verdict == "failed" and judged.end is not End.FINISHED:
            box.abandon()  # the script has been ended, perhaps in the middle of a call
            return Verdict(False, Outcome(End.FINISHED), cpu_s=judged.cpu_s)
        channel.sendall(len(_END).to_bytes(4, "big") + _END)
        outcome = box.outcome()
        if not outcome.alive:
            return Verdict(False, _early(outcome), cpu_s=judged.cpu_s)
        return Verdict(verdict == "passed", outcome, why if verdict == "broken" else "", judged.cpu_s, changed)


def _early(outcome: Outcome) -> Outcome:
    """Count a program that ends before it is told to as failed, whatever its exit code; its process is over."""
    return replace(outcome, end=End.RUNTIME_ERROR if outcome.end is End.FINISHED else outcome.end, alive=False)


def _read(outcome: Outcome) -> tuple[str, str, bool]:
    """Return a script's verdict, its reason, and whether it missed a change of an argument.

    "failed" if its process was ended: the program's values were too much.
    """
    if outcome.end is End.FINISHED and isinstance(outcome.value, list) and len(outcome.value) == 3:
        verdict, why, changed = outcome.value
        return str(verdict), str(why), changed is True
    return "failed", outcome.detail, False
