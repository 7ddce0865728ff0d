"""Sandbox as the reward sees it: a driver for one program, and confined forks of the driver for its tests."""

from __future__ import annotations

import base64
import os
import signal
from collections.abc import Collection
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self

from gspo_lightning.core.errors import InfrastructureError
from gspo_lightning.core.parsing import load_json
from gspo_lightning.rewards.sandbox.inside.decode import decode as decode_with
from gspo_lightning.rewards.sandbox.launch import INSIDE, Interpreter, Kind, program_user
from gspo_lightning.rewards.sandbox.limits import LAYERS, End, Limits, Outcome
from gspo_lightning.rewards.sandbox.warm import Driver, borrow, give_back

DEVICES = ("/dev/urandom", "/dev/random", "/dev/full")
_START_S = 60.0
_GRACE_S = 30.0


class Sandbox:
    """Sandbox for tests of one program, which cannot influence the machine or the expected values.

    A test has a process of its own, unless it ``shares`` one with the tests before it.

    Args:
        kind: the isolation, which must have passed its probe.
        python: the interpreter that runs programs.
        program: source code, from a model.
        limits: limits of each test.
        without: layers to leave out, for tests of the layers.
        preamble: run programs after :data:`PREAMBLE`.
        channel: a file descriptor to the other side of a test that is a script (:func:`examine`), or -1.
        role: the side of such a test, ``serve`` or ``examine``; ``compiler`` for a sandbox that only compiles.
        library: a compiled program, which runs in place of the source code.

    Raises:
        InfrastructureError: the sandbox does not start, here or at the first test.
    """

    def __init__(
        self,
        kind: Kind,
        python: Interpreter,
        program: str,
        limits: Limits,
        without: Collection[str] = (),
        *,
        preamble: bool = False,
        channel: int = -1,
        role: str = "",
        library: bytes = b"",
    ) -> None:
        if kind is Kind.UNSAFE and os.geteuid() == 0:
            raise InfrastructureError("programs are never run without isolation as root")
        layers = layers_of(kind) - set(without)
        self._limits = limits
        self._preamble = preamble
        self._keeps = not without and channel < 0 and kind is not Kind.UNSAFE
        setup = {
            "program": program,
            "namespaces": kind is Kind.BUBBLEWRAP,
            "layers": sorted(layers),
            "limits": limits.frame(),
            "readable": [*python.readable, str(INSIDE), *DEVICES * (not python.tools)],
            "user": program_user(kind, layers) if kind is Kind.BUBBLEWRAP else None,
            "preamble": preamble,
            "packages": [(name, os.path.dirname(paths[0])) for name, paths in python.packages],
            "channel": channel,
            "role": role,
            "library": library,
        }
        waiting = borrow(kind, python) if self._keeps else None
        if waiting is not None:
            try:
                self._begin(waiting, setup)
                return
            except InfrastructureError:  # it ended while it waited
                pass
        self._begin(Driver(kind, python, layers, channel), setup)

    def _begin(self, driver: Driver, setup: dict[str, Any]) -> None:
        self._driver = driver
        self._clean = True
        self._closed = False
        try:
            driver.send(setup | {"directory": driver.directory})
            self._receive(_START_S)
        except BaseException:
            self._clean = False
            self.close()
            raise

    def run(self, test: dict[str, Any]) -> Outcome:
        """Run one test and return how it ended.

        A test is ``{"stdin": True, "input"}``, ``{"entry", "arguments"}`` or ``{"expression", "setup"}``; ``setup`` is
        a list of keys and statements. Tests with ``"shares": True`` share a process, which loads the program once and
        runs the statement of a key once, until a test ends it.

        Raises:
            InfrastructureError: the sandbox failed, or the machine had no time for it: not the program's fault.
        """
        self.begin(test)
        return self.outcome()

    def compile(self, frame: dict[str, Any]) -> Outcome:
        """Compile the program; the outcome's value is the library."""
        self._send(frame)
        report = self._receive(self._limits.patience_s + _GRACE_S)
        library = base64.b64decode(report["report"])
        report["report"] = ""  # what a compiler leaves there is the library, and not JSON
        outcome = _outcome(report)
        if outcome.end is End.RUNTIME_ERROR:
            message = base64.b64decode(report["err"]).decode("utf-8", "replace").strip()
            return replace(outcome, end=End.SYNTAX_ERROR, detail=message[:300])
        return replace(outcome, value=library, returned=True) if outcome.end is End.FINISHED else outcome

    def begin(self, test: dict[str, Any]) -> None:
        """Start a test without waiting for its end."""
        self._send(test | {"preamble": True} if self._preamble else test)

    def outcome(self) -> Outcome:
        """Wait for the test that was begun, and return how it ended."""
        return _outcome(self._receive(self._limits.patience_s + _GRACE_S))

    def fileno(self) -> int:
        """Return a file descriptor that becomes readable when a test ends."""
        assert self._driver.process.stdout is not None
        return self._driver.process.stdout.fileno()

    def abandon(self) -> None:
        """Kill the sandbox, even in the middle of a test."""
        self._clean = False
        self._driver.process.kill()

    def close(self) -> None:
        """End the program and remove all it left; keep the process for another program if all tests ended well."""
        if self._closed:
            return
        self._closed = True
        if self._clean and self._keeps:
            give_back(self._driver)
        else:
            self._driver.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _send(self, message: dict[str, Any]) -> None:
        self._clean = False
        self._driver.send(message)

    def _receive(self, seconds: float) -> dict[str, Any]:
        report = self._driver.receive(seconds)
        ended_well = report["end"] in ("ready", "", "timeout", "overran", "memory", "disk")
        self._clean = ended_well and report.get("confined", True)
        return report


def layers_of(kind: Kind) -> set[str]:
    """Return the layers of a kind of isolation."""
    layers = set(LAYERS)
    if kind is Kind.BUBBLEWRAP:
        return layers - {"landlock"}
    layers -= {"files", "network", "processes", "tasks"}
    return layers - {"landlock", "seccomp", "uid"} if kind is Kind.UNSAFE else layers


def _outcome(frame: dict[str, Any]) -> Outcome:
    """Convert the driver's report to an outcome of the program.

    Raises:
        InfrastructureError: the test was not confined, so it was not run; or it was starved.
    """
    return replace(_ended(frame), alive=frame["alive"])


def _ended(frame: dict[str, Any]) -> Outcome:
    stdout = base64.b64decode(frame["out"]).decode("utf-8", "replace")
    errors = base64.b64decode(frame["err"]).decode("utf-8", "replace").strip()
    if not frame["confined"]:
        raise InfrastructureError(f"a test could not be confined: {errors[-300:] or frame['status']}")
    reason = frame["end"]
    status = frame["status"]
    cpu = frame["cpu"]
    if reason == "starved":
        raise InfrastructureError("a test was ready to run but got too little of the CPU")
    if reason in ("timeout", "overran", "asleep"):
        return Outcome(End.TIMEOUT, stdout, detail=reason, cpu_s=cpu, asleep=reason == "asleep")
    if reason == "memory":
        return Outcome(End.MEMORY, stdout, detail="all processes together", cpu_s=cpu)
    report = _report(base64.b64decode(frame["report"]))
    error = f"{str(report['error'])[:80]}: {str(report.get('text', ''))[:300]}" if "error" in report else ""
    if reason == "disk" or frame["full"]:
        return Outcome(End.OUTPUT_LIMIT, stdout, detail=reason or error, cpu_s=cpu)
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        end = End.TIMEOUT if number == signal.SIGXCPU else End.RUNTIME_ERROR
        return Outcome(end, stdout, detail=signal.Signals(number).name, cpu_s=cpu)
    if error or os.WEXITSTATUS(status) != 0:
        end = {"MemoryError": End.MEMORY, "SyntaxError": End.SYNTAX_ERROR}.get(error.split(":")[0], End.RUNTIME_ERROR)
        return Outcome(end, stdout, detail=error or f"exit code {os.WEXITSTATUS(status)}", cpu_s=cpu)
    try:
        value = decode(report["value"]) if "value" in report else None
    except (ValueError, RecursionError, TypeError):
        return Outcome(End.RUNTIME_ERROR, stdout, detail="it returned an invalid value", cpu_s=cpu)
    return Outcome(End.FINISHED, stdout, value, "value" in report, errors[-300:], cpu)


def _report(data: bytes) -> dict[str, Any]:
    """Parse the program's own report of its end, which it may have forged: anything but an object says nothing."""
    try:
        report = load_json(data or b"{}")
    except ValueError:
        return {"error": "forged report"}
    return report if isinstance(report, dict) else {"error": "forged report"}


@dataclass(frozen=True, eq=False)
class Opaque:
    """A value that is not plain data; it equals nothing, not even itself.

    >>> Opaque("Foo") == Opaque("Foo")
    False
    """

    kind: str

    def __eq__(self, other: object) -> bool:
        return False

    __hash__ = None  # type: ignore[assignment]


def decode(data: Any) -> Any:
    """Return the value that :func:`encode` described.

    >>> import json
    >>> from gspo_lightning.rewards.sandbox.inside.encode import encode
    >>> value = [1, (2.5, float("inf")), {1: {"a"}}, 1 << 70]
    >>> decode(json.loads(encode(value))) == value
    True

    Raises:
        ValueError: not what :func:`encode` writes, or keys that collide.
    """
    return decode_with(data, lambda kind: Opaque(str(kind)))
