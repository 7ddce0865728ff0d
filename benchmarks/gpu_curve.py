"""Parts of :mod:`benchmarks.gpu_check` that are whole runs: a learning curve, and the tests of runs on the device."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu_parts import Bench
from gspo_lightning.report.read import read_run
from gspo_lightning.report.run import Run

__all__ = ["joined", "measure_curve", "run_tests"]

ROOT = Path(__file__).parents[1]
CURVE = ROOT / "benchmarks" / "gpu_curve.yaml"
KEPT = ("val/accuracy", "reward/mean", "entropy", "clip/tokens", "response/length", "optim/gradient_norm")
"""Curves in the JSON; the folder of the run has the others."""
LIMIT_S = 280.0
TOY_TESTS = ("tests/core/test_transfer.py",)
PROCESSES = 10


def joined(files: Sequence[Path], folder: Path) -> Path:
    """Return a model's file; several pieces, in order, are joined in ``folder``, as calls to a machine may be small.

    >>> joined([Path("model.gguf")], Path())
    PosixPath('model.gguf')
    """
    if len(files) == 1:
        return files[0]
    whole = folder / "model.gguf"
    with whole.open("wb") as out:
        for file in files:
            with file.open("rb") as piece:
                shutil.copyfileobj(piece, out)
    return whole


def measure_curve(bench: Bench, models: Sequence[Path] = (), keep: Path | None = None) -> dict[str, Any]:
    """``gspo fit`` of SmolLM2-135M on word problems; of the quickstart, wider, where no model was brought.

    Args:
        bench: device.
        models: the model's GGUF file, or its pieces in order.
        keep: where the run folder stays.

    Raises:
        RuntimeError: the run fails.
    """
    if missing := [name for name in ("jsonargparse",) if importlib.util.find_spec(name) is None]:
        return {"skipped": f"{' and '.join(missing)} missing: docs/gpu_checks.md says which wheels to bring"}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        options: dict[str, object] = {"trainer.default_root_dir": keep or folder, "trainer.enable_progress_bar": False}
        found: dict[str, Any] = {}
        if models:
            file = joined(models, folder)
            found["model"] = f"SmolLM2, sha256 {hashlib.sha256(file.read_bytes()).hexdigest()}"
            configs, options = ["smollm2", str(CURVE)], options | {"model.name_or_path": file}
        else:
            found["model"] = "the quickstart's: no --model was given"
            configs = ["quickstart", "bf16"]
            options |= {"trainer.max_epochs": 40, "data.prompts_per_rollout": 64, "trainer.accelerator": "gpu"}
        if bench.toy:
            options |= {"trainer.accelerator": "cpu", "trainer.max_epochs": 2, "data.prompts_per_rollout": 4}
            options |= {"model.cold_start.steps": 2} if not models else {"data.evaluation.limit": 4}
        line = [sys.executable, "-m", "gspo_lightning", "fit", *(f"--config={config}" for config in configs)]
        _ended(subprocess.run(
            [*line, *(f"--{key}={value}" for key, value in options.items())], cwd=ROOT, timeout=LIMIT_S,
            capture_output=True, text=True,
        ))  # fmt: skip
        (run,) = {path.parent for path in (keep or folder).rglob("config.yaml")}
        return found | curves(read_run(run))


def _ended(done: subprocess.CompletedProcess[str]) -> None:
    if done.returncode:
        raise RuntimeError(f"gspo fit ended with {done.returncode}: {(done.stdout + done.stderr)[-1500:]}")


def curves(run: Run) -> dict[str, Any]:
    """Return curves as pairs (update, value), and the mean seconds of each phase of an iteration after the first."""
    found: dict[str, Any] = {"updates": run.updates, "summary": run.summary}
    for tag in KEPT:
        if tag in run.scalars:
            series = run.scalars[tag]
            found[tag] = [[int(s), float(v)] for s, v in zip(series.steps, series.values, strict=True)]
    for tag, series in run.scalars.items():
        if tag.startswith(("time/", "throughput/", "memory/")) and len(series) > 1:
            found[tag] = float(series.values[1:].mean())
    return found


def run_tests(bench: Bench) -> dict[str, Any]:
    """``make test-gpu``, with the names of the tests that failed, and the last line of each one's error."""
    files = TOY_TESTS if bench.toy else gpu_tests((ROOT / "Makefile").read_text(encoding="utf-8"))
    if missing := [name for name in ("pytest", "jsonargparse") if importlib.util.find_spec(name) is None]:
        return {"skipped": f"{' and '.join(missing)} missing"}
    environment = dict(os.environ) if bench.toy else {**os.environ, "GSPO_TEST_ACCELERATOR": "gpu"}
    several = importlib.util.find_spec("xdist") is not None and not bench.toy
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "tests.xml")
        line = [sys.executable, "-m", "pytest", *files, "--junitxml", str(report)]
        line += ["-n", str(PROCESSES), "--dist", "loadfile"] if several else []
        done = subprocess.run(line, cwd=ROOT, env=environment, timeout=LIMIT_S, capture_output=True, text=True)
        if not report.exists():
            raise RuntimeError(f"pytest ended with {done.returncode}: {(done.stdout + done.stderr)[-1500:]}")
        return outcomes(report.read_text(encoding="utf-8"))


def gpu_tests(makefile: str) -> list[str]:
    """Return the files of ``make test-gpu``.

    >>> gpu_tests("test-gpu: there\\n\\tpytest tests/a.py tests/b.py\\n\\nother: tests/c.py")
    ['tests/a.py', 'tests/b.py']
    """
    rule = makefile.split("\ntest-gpu:" if "\ntest-gpu:" in makefile else "test-gpu:", 1)[1].split("\n\n", 1)[0]
    return re.findall(r"tests/\S+\.py", rule)


def outcomes(xml: str) -> dict[str, Any]:
    """Return the numbers of tests in a JUnit report, and the failed ones with the last line of their errors."""
    cases = list(ElementTree.fromstring(xml).iter("testcase"))
    failed: Mapping[str, str] = {
        f"{case.get('classname')}::{case.get('name')}": _last_line(problem)
        for case in cases
        if (problem := next((x for x in case if x.tag in ("failure", "error")), None)) is not None
    }
    skipped = sum(any(x.tag == "skipped" for x in case) for case in cases)
    return {"tests": len(cases), "skipped_tests": skipped, "failed_tests": failed, "ok": not failed}


def _last_line(problem: ElementTree.Element) -> str:
    text = problem.get("message") or (problem.text or "").strip()
    return text.strip().splitlines()[-1][:300] if text.strip() else problem.tag
