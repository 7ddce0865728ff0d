"""Find the isolation that works here: run a program that tries what it must not be able to do."""

from __future__ import annotations

import compileall
import functools
import importlib.util
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from gspo_lightning.core.errors import InfrastructureError, UserError, did_you_mean
from gspo_lightning.rewards.sandbox.launch import INSIDE, Interpreter, Kind
from gspo_lightning.rewards.sandbox.limits import End, Limits, Outcome
from gspo_lightning.rewards.sandbox.process import Sandbox

AUTO = "auto"
INSTALL = (
    "install bubblewrap (make sandbox, or apt-get install bubblewrap) where user namespaces are allowed, or use Linux "
    "6.2 or newer with Landlock; in a container, allow user namespaces (docker: --security-opt seccomp=unconfined "
    "--security-opt apparmor=unconfined); run `gspo doctor` for what was tried"
)
_TRIES = Path(__file__).with_name("tries.py")
_LIMITS = Limits(cpu_s=5, memory_mb=256)
_SYSTEM_PYTHON = "/usr/bin/python3"


@dataclass(frozen=True, slots=True)
class Probe:
    """One thing that a program must not be able to do, and the result of trying it."""

    name: str
    held: bool
    detail: str


@dataclass(frozen=True, slots=True)
class Trial:
    """One kind of isolation with one interpreter; it works if every probe held."""

    kind: Kind
    python: Interpreter
    probes: tuple[Probe, ...]

    @property
    def works(self) -> bool:
        """True if programs may run with this isolation."""
        return all(probe.held for probe in self.probes)

    @property
    def reason(self) -> str:
        """Failed probes of an isolation that does not work."""
        return "; ".join(f"{p.name}: {p.detail}" for p in self.probes if not p.held)


@dataclass(frozen=True, slots=True)
class Isolation:
    """The chosen isolation and the reason, including the kinds that were tried before and did not work."""

    kind: Kind
    python: Interpreter
    why: str


@functools.cache
def choose(wanted: str = AUTO) -> Isolation:
    """Return the best isolation that works here: bubblewrap, else Landlock. Cached per process.

    Args:
        wanted: ``auto``, or the only kind to try; ``unsafe`` must be asked for by name.

    Raises:
        UserError: nothing works (the message names the probes that failed and what to install); or ``unsafe`` as root.
    """
    choices = [AUTO, *(kind.value for kind in Kind)]
    if wanted not in choices:
        raise UserError("CodeExecutor.isolation", f"{wanted!r} is unknown; {did_you_mean(wanted, choices)}")
    if not sys.dont_write_bytecode:
        compileall.compile_dir(INSIDE, quiet=2)  # halves the driver's start; nothing outside imports it
    if wanted == Kind.UNSAFE:
        if os.geteuid() == 0:
            raise UserError(
                "CodeExecutor.isolation", "is unsafe, but model-written programs are never run as root", fix=INSTALL
            )
        return Isolation(Kind.UNSAFE, Interpreter.own(), "explicitly requested: limits only, no isolation")
    tried: list[Trial] = []
    for trial in trials(wanted):
        tried.append(trial)
        if trial.works:
            why = "every probe held" + "".join(f"; not {t.kind}: {t.reason}" for t in tried[:-1])
            return Isolation(trial.kind, trial.python, why)
    reasons = "; ".join(f"{t.kind} with {t.python.executable}: {t.reason}" for t in tried)
    raise UserError(
        "CodeExecutor.isolation", f"no isolation for model-written programs works here: {reasons}", fix=INSTALL
    )


def with_packages(isolation: Isolation, names: tuple[str, ...]) -> Isolation:
    """Return the isolation with packages that programs may import, after running a program that imports all of them.

    A package comes from the interpreter that runs programs, else from this environment if both interpreters load the
    same extension modules.

    Raises:
        UserError: a package is installed for neither interpreter, or cannot be imported inside the sandbox.
    """
    python = isolation.python
    packages = tuple((name, _package(python, name)) for name in names)
    extended = replace(isolation, python=replace(python, packages=packages))
    if names and (reason := _import_error(extended.kind, extended.python)):
        raise UserError(
            "CodeExecutor.packages",
            f"programs cannot import {' and '.join(names)}: {reason} ({isolation.kind} with {python.executable})",
            fix=_how_to_install(python, names),
        )
    return extended


@functools.cache
def _import_error(kind: Kind, python: Interpreter) -> str:
    """Return why a program that imports all packages of the interpreter fails; "" if it works."""
    names = ", ".join(name for name, _ in python.packages)
    body = f"    try:\n        import {names}\n    except BaseException as e:\n        return repr(e)\n"
    try:
        with Sandbox(kind, python, f"def imports():\n{body}", Limits(cpu_s=20, memory_mb=1024)) as box:
            outcome = box.run({"entry": "imports", "arguments": []})
    except InfrastructureError as error:
        return str(error)
    if outcome.end is not End.FINISHED:
        return f"{outcome.end}: {outcome.detail}"
    return str(outcome.value or "")


def _how_to_install(python: Interpreter, names: tuple[str, ...]) -> str:
    packages = " ".join(names)
    executable = os.path.realpath(sys.executable)
    system = f"install python3-{names[0]} of this system, or: " if python.executable.startswith("/usr/bin/") else ""
    return (
        f"{system}{python.executable} -m pip install {packages}"
        + (
            f"; or give {executable} and its packages to every user to read (chmod)"
            if python.executable != executable
            else ""
        )
        + "; or leave them out of `packages` if no program needs them"
    )


@functools.cache
def _package(python: Interpreter, name: str) -> tuple[str, ...]:
    """Return the folder of a package, and the folder of its libraries if there is one."""
    if not name.isidentifier():
        raise UserError("CodeExecutor.packages", f"{name!r} is not a name of a package")
    if python.executable == Interpreter.own().executable:
        place = None
        extensions = sysconfig.get_config_var("SOABI")
    else:
        script = (
            "import importlib.util as u, json, sys, sysconfig as c; s = u.find_spec(sys.argv[1]); "
            "print(json.dumps([c.get_config_var('SOABI'), list(s.submodule_search_locations or ()) if s else []]))"
        )
        answer = subprocess.run(
            [python.executable, "-I", "-c", script, name], capture_output=True, text=True, timeout=60, check=False
        )
        extensions, places = json.loads(answer.stdout) if answer.returncode == 0 else ("", [])
        place = places[0] if places else None
    # both interpreters can load an extension module of this environment if they name such modules alike
    if place is None and extensions == sysconfig.get_config_var("SOABI"):
        spec = importlib.util.find_spec(name)
        place = next(iter(spec.submodule_search_locations or ()), None) if spec is not None else None
    if place is None or not os.path.isdir(place):
        raise UserError(
            "CodeExecutor.packages",
            f"names {name}, which {python.executable} has not installed as a package",
            fix=_how_to_install(python, (name,)),
        )
    folder = os.path.realpath(place)
    libraries = f"{folder}.libs"
    return (folder, libraries) if os.path.isdir(libraries) else (folder,)


def trials(wanted: str = AUTO) -> Iterator[Trial]:
    """Try every candidate lazily, the best first."""
    for kind in (Kind.BUBBLEWRAP, Kind.LANDLOCK):
        if wanted in (AUTO, kind):
            for python in _interpreters():
                yield _try(kind, python)


@functools.cache
def _interpreters() -> tuple[Interpreter, ...]:
    """Return this interpreter, and the system's for users who cannot read this one (``/root/...``)."""
    interpreter = Interpreter.own()
    if not os.access(_SYSTEM_PYTHON, os.X_OK) or os.path.realpath(_SYSTEM_PYTHON) == interpreter.executable:
        return (interpreter,)
    script = "import json, sys; print(json.dumps([sys.base_prefix, sys.version_info[:2] >= (3, 10)]))"
    answer = subprocess.run([_SYSTEM_PYTHON, "-I", "-S", "-c", script], capture_output=True, timeout=60, check=False)
    if answer.returncode != 0:
        return (interpreter,)
    prefix, recent = json.loads(answer.stdout)
    return (interpreter, Interpreter(os.path.realpath(_SYSTEM_PYTHON), prefix)) if recent else (interpreter,)


def _try(kind: Kind, python: Interpreter) -> Trial:
    with tempfile.TemporaryDirectory(prefix="gspo-probe-") as folder:
        os.chmod(folder, 0o777)
        secret = Path(folder, "secret")
        secret.write_text("secret")
        secret.chmod(0o666)
        try:
            with Sandbox(kind, python, _TRIES.read_text(), _LIMITS) as box:
                files = box.run({"entry": "tries", "arguments": [folder, os.getpid()]})
                memory = box.run({"entry": "hog", "arguments": [2 * _LIMITS.memory_mb]})
        except InfrastructureError as error:
            return Trial(kind, python, (Probe("start", False, str(error)),))
        written = sorted(os.listdir(folder)) != ["secret"] or secret.read_text() != "secret"
    return Trial(kind, python, tuple(_probes(files, memory, written=written)))


def _probes(tries: Outcome, memory: Outcome, *, written: bool) -> Iterator[Probe]:
    """Yield the result of each try: a try held if it raised the right kind of error."""
    if tries.end is not End.FINISHED or not isinstance(tries.value, dict):
        yield Probe("start", False, f"the probing program ended with {tries.end}: {tries.detail}")
        return
    yield Probe("start", True, "a program ran")
    for name, (held, detail) in tries.value.items():
        yield Probe(name, held, detail)
    yield Probe("writes outside", not written, "a file of this process was changed" if written else "nothing changed")
    yield Probe("memory", memory.end is End.MEMORY, f"asking for too much ended with {memory.end}")
