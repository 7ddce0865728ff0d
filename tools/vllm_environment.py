"""The environment of ``make test-vllm``: ``python tools/vllm_environment.py FOLDER`` prints its interpreter.

It is built once, at ``FOLDER/vllm-KEY``, where the key is a hash of what goes into it (``constraints-vllm.txt``, the
Python that builds it, this file). A file that is written last marks it as complete; what a killed build has left is
thrown away, and who comes while another one builds waits. Standard library only.
"""

from __future__ import annotations

import fcntl
import hashlib
import platform
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Sequence
from pathlib import Path

CONSTRAINTS = Path(__file__).with_name("constraints-vllm.txt")
MARK = "complete"
PLATFORM = ("Linux", "x86_64")
"""The one that the constraints were made for."""
OPERATORS = """\
# Beside another build of torch (torch+cpu, and torchvision from PyPI) the library of torchvision's operators cannot
# be loaded, and then torchvision cannot be imported: it describes operators that do not exist. What vLLM does with
# pictures does not call them, so they are declared here, without an implementation.
import importlib.abc
import sys


class DeclareOperators(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name != "torchvision":
            return None
        sys.meta_path.remove(self)
        import importlib.util

        import torch

        folder = importlib.util.find_spec("torchvision").submodule_search_locations[0]
        try:
            torch.ops.load_library(folder + "/_C.so")
        except OSError:
            self.library = torch.library.Library("torchvision", "DEF")
            for name in ("nms", "qnms"):
                self.library.define(name + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        return None


finder = DeclareOperators()  # keeps the library, with which the declarations would go
sys.meta_path.insert(0, finder)
"""


class UnavailableError(Exception):
    """There is no such environment, and why."""


def main(folder: str, pip_arguments: Sequence[str] = ()) -> int:
    """Build it if it is not there yet; its interpreter is the only thing on standard output."""
    try:
        print(interpreter(Path(folder).absolute(), CONSTRAINTS, lambda home: install(home, CONSTRAINTS, pip_arguments)))
    except UnavailableError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def interpreter(
    folder: Path, constraints: Path, build: Callable[[Path], None], name: str = "vllm", recipe: Path = Path(__file__)
) -> Path:
    """The interpreter of the complete environment; ``build`` is called with the folder to make where it is not there.

    Raises:
        UnavailableError: it cannot be built here.
    """
    home = folder / f"{name}-{key(constraints, recipe)}"
    folder.mkdir(parents=True, exist_ok=True)
    with open(f"{home}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # ends with the process, however that ends
        if not (home / MARK).is_file():
            print(f"building {home}: once, a few minutes", file=sys.stderr, flush=True)
            shutil.rmtree(home, ignore_errors=True)
            build(home)
            (home / MARK).touch()
    return home / "bin" / "python"


def key(constraints: Path, recipe: Path = Path(__file__)) -> str:
    """Changes with everything that the environment is made from; ``recipe`` is the file that builds it."""
    made_from = [constraints.read_bytes(), recipe.read_bytes(), sys.version.encode()]
    return hashlib.sha256(b"\0".join(made_from)).hexdigest()[:12]


def install(home: Path, constraints: Path, pip_arguments: Sequence[str]) -> None:
    """A virtual environment with what the constraints list.

    Raises:
        UnavailableError: pip finds no such packages for this Python and platform.
    """
    steps: list[list[str | Path]] = [
        ["-c", constraints, "torch"],  # with what this build of torch needs: a CUDA build brings its libraries
        ["--no-deps", "-r", constraints],
    ]
    make(home, steps, pip_arguments, "vLLM")
    (packages,) = home.glob("lib/python*/site-packages")
    (packages / "declare_operators.py").write_text(OPERATORS)
    (packages / "declare_operators.pth").write_text("import declare_operators\n")


def make(home: Path, steps: Sequence[Sequence[str | Path]], pip_arguments: Sequence[str], what: str) -> None:
    """A virtual environment with what pip installs in some steps, each given by its arguments.

    Raises:
        UnavailableError: pip finds no such packages for this Python and platform.
    """
    venv.create(home, with_pip=True)
    pip = [home / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *pip_arguments]
    for step in steps:
        done = subprocess.run([*pip, *step], check=False, stdout=sys.stderr, stderr=subprocess.PIPE, text=True)
        if done.returncode:
            here = (platform.system(), platform.machine())
            other = "" if here == PLATFORM else f" (made for {' '.join(PLATFORM)}, this is {' '.join(here)})"
            reason = ([x for x in done.stderr.splitlines() if x.startswith("ERROR")] or ["pip failed"])[-1]
            raise UnavailableError(f"{what} cannot be installed for {sys.executable}{other}: {reason}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
