"""The steps of a Dockerfile up to the device: ``python -m tools.try_container examples/Dockerfile [PIP ARGUMENTS]``.

With a docker daemon the image is built, with torch for CPUs, and its default command is run in it. Without one the
steps are carried out in an empty folder: the base image is a new virtual environment of this Python, ``/work`` is the
folder, COPY copies, and RUN runs in bash. Packages of the system and the user are not made there; what they would
bring and this machine lacks is named. Prints the seconds of each step.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Container", "instructions", "main"]

ROOT = Path(__file__).parents[1]
CPU = "https://download.pytorch.org/whl/cpu"
OF_THE_SYSTEM = {"apt-get": ("bwrap", "g++", "git"), "useradd": ()}
"""Program that only an image runs -> commands that it brings."""
VARIABLES = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")


def instructions(text: str) -> Iterator[tuple[str, str]]:
    """Yield (instruction, rest) of a Dockerfile.

    >>> list(instructions("# a\\nFROM x\\nRUN a \\\\\\n  # b\\n && c\\n"))
    [('FROM', 'x'), ('RUN', 'a && c')]
    """
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    for whole in re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines():
        if whole.strip():
            word, _, rest = whole.strip().partition(" ")
            yield word.upper(), re.sub(r"\s+", " ", rest.strip())


@dataclass
class Container:
    """An image whose steps are carried out in a folder.

    Args:
        context: folder that COPY copies from.
        folder: ``/work`` of the image.
        arguments: values of ARG that differ from their defaults.
        variables: environment of every step.
    """

    context: Path
    folder: Path
    arguments: dict[str, str] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    entry: list[str] = field(default_factory=list)
    default: list[str] = field(default_factory=list)

    def step(self, word: str, rest: str) -> None:
        """Carry out one instruction.

        Raises:
            SystemExit: it fails, or is not known here.
        """
        if word == "FROM":
            assert rest.startswith("python:"), rest
            venv.create(self.folder.parent / "base", with_pip=True)
            path = f"{self.folder.parent / 'base' / 'bin'}{os.pathsep}{os.environ['PATH']}"
            self.variables |= {k: v for k, v in os.environ.items() if k not in VARIABLES} | {"PATH": path}
        elif word == "ARG":
            name, _, value = rest.partition("=")
            self.variables[name] = self.arguments.get(name, value)
        elif word == "WORKDIR":
            assert rest == "/work", rest
            self.folder.mkdir(exist_ok=True)
        elif word == "COPY":
            *sources, target = rest.split()
            for source in sources:
                self._copy(self.context / source, self.folder / target)
        elif word == "RUN":
            self._run(rest)
        elif word in ("ENTRYPOINT", "CMD"):
            words = shlex.split(re.sub(r"[\[\],]", " ", rest))
            self.entry, self.default = (words, self.default) if word == "ENTRYPOINT" else (self.entry, words)
        elif word != "USER":  # the owner of the folder is who runs this
            sys.exit(f"error: {word} is not carried out here")

    def _copy(self, source: Path, target: Path) -> None:
        if source.is_dir():
            shutil.copytree(source, target, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target if not target.is_dir() else target / source.name)

    def _run(self, script: str) -> None:
        for program, brings in OF_THE_SYSTEM.items():
            if script.startswith(program):
                missing = [name for name in brings if shutil.which(name) is None]
                for name in missing:
                    print(f"           not here: {name}, which the image installs")
                return
        if script.startswith("chown"):
            return
        self.call(["bash", "-euc", script.replace("/work", str(self.folder))])

    def call(self, command: Sequence[str], allowed: Sequence[int] = (0,)) -> str:
        """Run a command in the folder; return its output.

        Raises:
            SystemExit: its exit code is another than those that are allowed.
        """
        done = subprocess.run(
            command, cwd=self.folder, env=self.variables, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            check=False,
        )  # fmt: skip
        if done.returncode not in allowed:
            sys.exit(f"{done.stdout}\nerror: {' '.join(command)[:300]} ended with exit code {done.returncode}")
        return done.stdout


def in_folder(file: Path, pip_arguments: Sequence[str]) -> str:
    """Carry out all steps, then the default command; return its output."""
    torch = next(line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith("torch=="))
    with tempfile.TemporaryDirectory(prefix="gspo-container-") as name:
        made = Container(ROOT, Path(name).resolve() / "work", {"TORCH_INDEX": CPU})
        for word, rest in instructions(file.read_text(encoding="utf-8")):
            start = time.monotonic()
            if pip_arguments and word == "RUN":  # an index of this machine, and its build of torch
                given = shlex.join(pip_arguments)
                rest = rest.replace("--index-url ${TORCH_INDEX}", given).replace('"torch>=2.10"', f'"{torch}"')
                rest = rest.replace("-c /tmp/constraints.txt", f"-c /tmp/constraints.txt {given}")
            made.step(word, rest)
            print(f"{time.monotonic() - start:7.1f} s  {word} {rest[:100]}", flush=True)
        return made.call([*made.entry, *made.default], allowed=(0, 1))


def in_docker(file: Path) -> str:
    """Build the image with torch for CPUs, and run its default command; return its output."""
    image = "gspo_lightning:try"
    build = ["docker", "build", "-q", "--build-arg", f"TORCH_INDEX={CPU}", "-f", str(file), "-t", image, "."]
    subprocess.run(build, cwd=ROOT, check=True)
    done = subprocess.run(["docker", "run", "--rm", image], capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def check(report: str) -> None:
    """Check what ``gspo doctor`` reports: versions, and no problem but the isolation that a host has to allow.

    Raises:
        SystemExit: another problem, or no report.
    """
    problems = set(re.findall(r"│ problem +│ +(\S+)", report)) - {"isolation"}
    if problems or not re.search(r"│ ok +│ +torch ", report):
        sys.exit(f"error: gspo doctor has problems: {', '.join(sorted(problems)) or 'it reports no version of torch'}")


def main(file: str, *pip_arguments: str) -> None:
    """Try a Dockerfile.

    Raises:
        SystemExit: a step fails, or the default command reports a problem.
    """
    daemon = (
        shutil.which("docker") and subprocess.run(["docker", "info"], capture_output=True, check=False).returncode == 0
    )
    said = in_docker(Path(file)) if daemon else in_folder(Path(file), pip_arguments)
    print(said)
    check(said)
    print("the steps work" + ("" if daemon else ", in a folder: there is no docker daemon here"))


if __name__ == "__main__":
    main(sys.argv[1], *sys.argv[2:])
