"""The wheel as a newcomer meets it: ``python -m tools.try_wheel dist/*.whl``, which ``make test-wheel`` calls.

Installs it with pinned versions in an empty environment, and runs it in an empty folder: the configs that ship, the
quickstart shortened, a new project with its own test, and its run. Prints the seconds of each step.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
SHORT = ["--trainer.max_epochs=2", "--model.cold_start.steps=50", "--data.evaluation.limit=32"]
VARIABLES = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "OMP_NUM_THREADS")
"""Of a developer's shell, which a newcomer does not have."""


def step(title: str, command: Sequence[str | Path], folder: Path) -> str:
    """Run a command and print how long it took; returns its output.

    Raises:
        SystemExit: it failed.
    """
    start = time.monotonic()
    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    done = subprocess.run(
        [str(word) for word in command],
        cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    print(f"{time.monotonic() - start:7.1f} s  {title}", flush=True)
    if done.returncode:
        sys.exit(f"{done.stdout}\nerror: {title} ended with exit code {done.returncode}")
    return done.stdout


def main(wheel: str, pip_arguments: Sequence[str]) -> None:
    """Install and run.

    Args:
        wheel: the file.
        pip_arguments: of ``pip install``, such as an index with CPU wheels.
    """
    with tempfile.TemporaryDirectory(prefix="gspo-wheel-") as name:
        folder = Path(name)
        newcomer, empty = folder / "venv", folder / "empty"
        empty.mkdir()
        venv.create(newcomer, with_pip=True)
        pip = [newcomer / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        step("install", [*pip, *pip_arguments, "-c", ROOT / "constraints.txt", Path(wheel).resolve(), "pytest"], folder)
        gspo = newcomer / "bin" / "gspo"
        assert "gspo init" in step("gspo --help", [gspo, "--help"], empty)
        listed = step("gspo list configs", [gspo, "list", "configs"], empty)
        missing = [p for p in (ROOT / "configs").rglob("*.yaml") if p.stem not in listed]
        assert not missing, f"not in the wheel: {missing}"
        step("gspo plan, a plug-in of the wheel", [gspo, "plan", "--config=quickstart", "--config=brevity"], empty)
        step("gspo fit, the quickstart shortened", [gspo, "fit", "--config", "quickstart", *SHORT], empty)
        step("gspo init", [gspo, "init", "project"], empty)
        step("the project's own test", [newcomer / "bin" / "pytest", "-q"], empty / "project")
        step("gspo fit, the project: its first curve", [gspo, "fit", "--config", "project/train.yaml"], empty)
        for run in ("quickstart", "train"):
            assert (empty / "runs" / run / "version_0" / "report.png").is_file(), f"{run} drew no curve"
        assert list(newcomer.rglob("gspo_lightning/py.typed")), "no py.typed in the wheel"
    print("the wheel works")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
