"""Checks of ``gspo doctor``: versions, devices, the sandbox for programs, and the precision of ratios."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from collections.abc import Callable, Iterator

from gspo_lightning.commands.doctor.finding import Finding
from gspo_lightning.errors import UserError
from gspo_lightning.sandbox import cpp
from gspo_lightning.sandbox.probe import INSTALL, choose, trials, with_packages

__all__ = ["CHECKS"]

PACKAGES = ("torch", "lightning", "transformers", "torchmetrics", "jsonargparse", "math-verify", "bitsandbytes")
LEAST = {"torch": (2, 10), "lightning": (2, 6), "transformers": (5, 16)}
"""Package -> oldest supported version."""
PROGRAM_PACKAGES = ("numpy",)
"""Packages that programs of the shipped suites and data configs may import."""


def versions() -> Iterator[Finding]:
    """Compare the versions of Python and of the main packages with the supported ones."""
    supported = sys.version_info >= (3, 11)
    yield Finding(
        "ok" if supported else "problem",
        "python",
        platform.python_version(),
        "" if supported else "use Python 3.11 or newer",
    )
    for name in PACKAGES:
        try:
            found = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            yield Finding("problem", name, "not installed", "pip install -c constraints.txt -e .")
            continue
        least = LEAST.get(name, (0,))
        recent = tuple(int(part) for part in found.split(".")[:2] if part.isdigit()) >= least
        fix = "" if recent else f"install {name} {'.'.join(map(str, least))} or newer"
        yield Finding("ok" if recent else "problem", name, found, fix)


def devices() -> Iterator[Finding]:
    """List CPUs and GPUs."""
    cpus = len(os.sched_getaffinity(0))
    yield Finding("ok", "CPUs", str(cpus), "" if cpus > 1 else "rewards share the core with the trainer")
    try:
        import torch
    except ImportError:  # reported by versions()
        return
    count = torch.cuda.device_count()
    if not count:
        built = "built for CUDA" if torch.version.cuda else "a CPU build of torch"
        yield Finding("note", "GPUs", f"none ({built})", "fine for the tiny models; train larger ones on a GPU")
    for i in range(count):
        properties = torch.cuda.get_device_properties(i)
        memory = f"{properties.total_memory / 2**30:.0f} GiB"
        yield Finding("ok", f"GPU {i}", f"{properties.name}, {memory}, bf16 {torch.cuda.is_bf16_supported()}")


def sandbox() -> Iterator[Finding]:
    """Report the isolation chosen for model-written programs, what its probes showed, and the other ones tried."""
    try:
        chosen = choose()
    except UserError as error:
        yield Finding("problem", "isolation", error.problem, error.fix or INSTALL)
        chosen = None
    for trial in trials():
        name = f"{trial.kind}, {trial.python.executable}"
        if chosen is not None and (trial.kind, trial.python) == (chosen.kind, chosen.python):
            yield Finding("ok", name, f"chosen: {chosen.why}")
            yield from (Finding("ok", f"  {probe.name}", probe.detail) for probe in trial.probes)
        elif trial.works:
            yield Finding("ok", name, "works, too")
        else:
            yield Finding("note", name, trial.reason, INSTALL if chosen is None else "none needed: there is another")
    if chosen is not None:
        reason = cpp.missing(chosen)
        yield Finding("note" if reason else "ok", "C++ programs", reason or "one was compiled, and ran")
        for name in PROGRAM_PACKAGES:
            try:
                with_packages(chosen, (name,))
                yield Finding("ok", f"{name} in programs", "a program imported it")
            except UserError as error:
                needs = f"{error.problem}; suites and data sets with `packages: [{name}]` do not start"
                yield Finding("note", f"{name} in programs", needs, error.fix or "")


def precision() -> Iterator[Finding]:
    """Compare the ratio noise of a tiny model in every precision with GSPO's clip range."""
    from gspo_lightning.commands.doctor.precision import findings

    return findings()


CHECKS: dict[str, Callable[[], Iterator[Finding]]] = {
    "versions": versions,
    "devices": devices,
    "sandbox": sandbox,
    "precision": precision,
}
"""Name -> check; each yields the rows of its table."""
