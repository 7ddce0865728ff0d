"""C++ programs: compile one to a shared library in a sandbox, then run its tests in one without a compiler."""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
from collections import OrderedDict
from dataclasses import dataclass, replace

from gspo_lightning.core.errors import InfrastructureError
from gspo_lightning.rewards.sandbox.limits import End, Limits, Outcome
from gspo_lightning.rewards.sandbox.probe import Isolation
from gspo_lightning.rewards.sandbox.process import Sandbox

COMPILING = Limits(cpu_s=20, memory_mb=1024, tasks=16, disk_mb=128, files=64, file_mb=32)
"""Limits of the compiler. All of ``bits/stdc++.h`` takes about 1.5 s of CPU and 250 MiB."""
_LARGEST_LIBRARY = 8 << 20
_KEPT = 32
_FLAGS = (
    "-std=gnu++20", "-O2", "-DONLINE_JUDGE", "-pthread", "-w", "-fmax-errors=3",
    "-fPIC", "-shared", "-fno-semantic-interposition", "-Wl,-Bsymbolic,-z,defs",  # as fast as an executable
    "-o", "program.so", "-x", "c++", "program.cpp",
)  # fmt: skip
_PROBE = "#include <iostream>\nint main() { int a, b; std::cin >> a >> b; std::cout << a + b << std::endl; }\n"
_FOLDERS = ("/usr/bin", "/bin", "/usr/local/bin")
"""Folders of the system's compiler; one of another environment has its parts elsewhere."""
_INSTALL = "install g++ (make sandbox, or apt-get install g++)"


@dataclass(frozen=True, slots=True)
class _Toolchain:
    """A compiler with the paths that it reads and executes."""

    executable: str
    paths: tuple[str, ...]
    search: str


_results: OrderedDict[bytes, bytes | Outcome] = OrderedDict()


@functools.cache
def missing(isolation: Isolation) -> str:
    """Return why C++ programs cannot run here, or "" if one compiled and ran. Cached per process."""
    if _toolchain() is None:
        return f"there is no C++ compiler: {_INSTALL}"
    try:
        library = compiled(isolation, _PROBE)
        if isinstance(library, Outcome):
            return f"g++ does not work in the sandbox ({isolation.kind}): {library.end}: {library.detail}"
        with Sandbox(isolation.kind, isolation.python, "", Limits(), library=library) as box:
            outcome = box.run({"stdin": True, "input": "3 4"})
    except InfrastructureError as error:
        return f"g++ does not work in the sandbox ({isolation.kind}): {error}"
    if outcome.stdout != "7\n":
        return f"a C++ program does not run in the sandbox ({isolation.kind}): {outcome.end}: {outcome.detail}"
    return ""


def compiled(isolation: Isolation, program: str) -> bytes | Outcome:
    """Return the compiled library of a program, or the outcome of a compilation that failed (the program's fault).

    The last 32 results are cached: a model often writes the same program several times for one prompt.

    Raises:
        InfrastructureError: the sandbox failed, or the machine had no time for it.
    """
    source = program.encode("utf-8", "surrogatepass")
    key = hashlib.sha256(f"{isolation.kind} {isolation.python.executable}\n".encode() + source).digest()
    if key not in _results:
        _results[key] = _compile(isolation, program)
        if len(_results) > _KEPT:
            _results.popitem(last=False)
    _results.move_to_end(key)
    return _results[key]


def forget() -> None:
    """Clear the cache of compiled programs."""
    _results.clear()


def _compile(isolation: Isolation, program: str) -> bytes | Outcome:
    tools = _toolchain()
    assert tools is not None
    python = replace(isolation.python, packages=(), tools=tools.paths)
    env = {"PATH": tools.search, "TMPDIR": ".", "LC_ALL": "C"}
    for _ in range(2):  # a compiler that a busy machine held up gets a second try
        with Sandbox(isolation.kind, python, program, COMPILING, role="compiler") as box:
            outcome = box.compile({"compile": [tools.executable, *_FLAGS], "env": env})
        if not outcome.asleep:
            break
    if outcome.end is not End.FINISHED:
        return outcome
    library: bytes = outcome.value
    if len(library) > _LARGEST_LIBRARY:
        return replace(outcome, end=End.OUTPUT_LIMIT, value=None, detail=f"the program has {len(library)} bytes")
    return library


@functools.cache
def _toolchain() -> _Toolchain | None:
    """Return the system's g++ with its parts, or None."""
    folders = os.pathsep.join(folder for folder in _FOLDERS if folder in os.get_exec_path())
    programs = {name: shutil.which(name, path=folders) for name in ("g++", "as", "ld")}
    compiler = programs["g++"]
    if compiler is None or not all(programs.values()):
        return None
    parts = [_ask(compiler, f"-print-prog-name={name}") for name in ("cc1plus", "collect2")]
    paths = [path for path in programs.values() if path is not None]
    paths += [os.path.dirname(os.path.realpath(part)) for part in parts if os.path.isabs(part)]
    paths += [folder for folder in _include_folders(compiler) if os.path.isdir(folder)]
    search = ":".join(dict.fromkeys(os.path.dirname(path) for path in programs.values() if path is not None))
    return _Toolchain(compiler, tuple(dict.fromkeys(paths)), search)


def _include_folders(compiler: str) -> list[str]:
    search = subprocess.run(
        [compiler, "-E", "-x", "c++", "-v", "/dev/null"], capture_output=True, text=True, timeout=60, check=False
    ).stderr
    folders = search.partition("#include <...> search starts here:")[2].partition("End of search list")[0]
    return [os.path.realpath(line.strip()) for line in folders.splitlines() if line.strip()]


def _ask(compiler: str, question: str) -> str:
    return subprocess.run([compiler, question], capture_output=True, text=True, timeout=60, check=False).stdout.strip()
