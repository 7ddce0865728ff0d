"""All hostile programs, and how one is run. As a script, as an ordinary user, it needs nothing but the package:

    python hostile_catalogue.py bubblewrap < target.json

prints what was not stopped as it should be, a line each. With ``--stopped`` it does not look at what happens
without the layer.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hostile_files import FILES
from hostile_network import NETWORK
from hostile_processes import PROCESSES
from hostile_program import Hostile, Stopped, verdict
from hostile_resources import RESOURCES

from gspo_lightning.rewards.sandbox import Interpreter, Kind, Limits, Sandbox, choose

__all__ = ["PROGRAMS", "applies", "complaints", "run"]

PROGRAMS = [*FILES, *NETWORK, *PROCESSES, *RESOURCES]
LIMITS = Limits(cpu_s=0.5, memory_mb=200, tasks=16, disk_mb=8, files=64, file_mb=4, descriptors=32)


def run(
    program: Hostile, kind: Kind, python: Interpreter, target: dict[str, Any], without: tuple[str, ...] = ()
) -> str:
    """The verdict, and whether a process stayed when the test was over."""
    target = target | {"namespaces": kind is Kind.BUBBLEWRAP}
    with Sandbox(kind, python, program.source, LIMITS, without=without) as box:
        seen = verdict(box.run({"stdin": True, "input": json.dumps(target)}))
        left = [p for p in Path("/proc").glob("[0-9]*/comm") if _comm(p) == "gspo-left-over"]
    return seen + " and a process stayed" * bool(left)


def complaints(
    program: Hostile, kind: Kind, python: Interpreter, target: dict[str, Any], only_stopped: bool = False
) -> Iterator[str]:
    """What is wrong: not stopped as recorded, something changed outside, or (not looked at with ``only_stopped``)
    stopped without the layer, too.
    """
    stopped: Stopped = getattr(program, kind.value)
    seen = run(program, kind, python, target)
    for _ in range(2):  # on a busy machine time may be over before a program has done what it is stopped for
        if not seen.startswith("timeout") or seen == stopped.evidence:
            break
        seen = run(program, kind, python, target)
    if seen != stopped.evidence:
        yield f"{program.name}: {seen!r} instead of {stopped.evidence!r}"
    if Path(target["secret"]).read_text() + Path(target["scratch"]).read_text() != "secretsecret":
        yield f"{program.name}: a file outside was changed"
    if sorted(os.listdir(target["folder"])) != ["scratch", "secret", "socket"]:
        yield f"{program.name}: a file outside was made or removed"
    if stopped.layers and not only_stopped and run(program, kind, python, target, stopped.layers) == stopped.evidence:
        yield f"{program.name}: nothing changes without {stopped.layer}"


def applies(program: Hostile, kind: Kind) -> bool:
    """Whether the program means anything to this kind and this user."""
    stopped: Stopped | None = getattr(program, kind.value)
    return stopped is not None and (os.geteuid() == 0 or not stopped.root_only)


def _comm(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:  # it ended meanwhile
        return ""


def _restore(target: dict[str, Any]) -> None:
    for name in ("secret", "scratch"):
        path = Path(target[name])
        path.unlink(missing_ok=True)
        path.write_text("secret")
        path.chmod(0o666)
    made = Path(target["folder"], "made")
    if made.is_dir():
        made.rmdir()
    made.unlink(missing_ok=True)


if __name__ == "__main__":
    chosen = choose(sys.argv[1])
    aim = json.load(sys.stdin)
    for hostile in PROGRAMS:
        if applies(hostile, chosen.kind):
            for complaint in complaints(hostile, chosen.kind, chosen.python, aim, "--stopped" in sys.argv):
                print(complaint)
            _restore(aim)
    print(f"{sum(applies(hostile, chosen.kind) for hostile in PROGRAMS)} programs as user {os.getuid()}")
