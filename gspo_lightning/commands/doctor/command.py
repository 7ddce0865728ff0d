"""``gspo doctor``: check versions, devices, the sandbox and the precision of ratios, a table for each."""

from __future__ import annotations

import argparse
import importlib.metadata
import platform
import sys
from collections.abc import Callable, Iterator, Sequence

from rich.table import Table
from rich.text import Text

from gspo_lightning.commands.doctor.finding import Finding
from gspo_lightning.core.errors import UserError
from gspo_lightning.core.escape import terminal
from gspo_lightning.rewards.sandbox import cpp
from gspo_lightning.rewards.sandbox.probe import INSTALL, choose, trials, with_packages
from gspo_lightning.rewards.workers.runner_settings import available_cpus

PACKAGES = ("torch", "lightning", "transformers", "torchmetrics", "jsonargparse", "math-verify", "bitsandbytes")
LEAST = {"torch": (2, 10), "lightning": (2, 6), "transformers": (5, 16)}
"""Package -> oldest supported version."""
PROGRAM_PACKAGES = ("numpy",)
"""Packages that programs of the shipped suites and data configs may import."""
_COLOURS = {"ok": "green", "note": "yellow", "problem": "red"}


def system() -> Finding:
    """Name the operating system; everything here was run on Linux alone."""
    kernel = platform.release()
    name = f"{platform.system()} {kernel}, {platform.machine()}"
    if platform.system() != "Linux":
        return Finding("note", "system", name, "untested: no sandbox for programs and agents (docs/install.md)")
    if "microsoft" in kernel.lower():
        return Finding("note", "system", name, "WSL is untested: WSL 2 has a Linux kernel, WSL 1 no sandbox")
    return Finding("ok", "system", name)


def versions() -> Iterator[Finding]:
    """Compare the versions of Python and of the main packages with the supported ones."""
    yield system()
    supported = sys.version_info >= (3, 11)
    yield Finding(
        "ok" if supported else "problem",
        "python",
        platform.python_version(),
        "" if supported else "use Python 3.11 or newer",
    )
    for name in PACKAGES:
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            yield Finding("problem", name, "not installed", "pip install -c constraints.txt -e .")
            continue
        least = LEAST.get(name, (0,))
        recent = tuple(int(part) for part in version.split(".")[:2] if part.isdigit()) >= least
        fix = "" if recent else f"install {name} {'.'.join(map(str, least))} or newer"
        yield Finding("ok" if recent else "problem", name, version, fix)


def devices() -> Iterator[Finding]:
    """List CPUs and GPUs."""
    cpus = available_cpus()
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
            for probe in trial.probes:
                yield Finding("ok", f"  {probe.name}", probe.detail)
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


def main(argv: Sequence[str]) -> int:
    """Print a table per check; return 1 if any finding is a problem, else 0."""
    parser = argparse.ArgumentParser(
        "gspo doctor", description="Check versions and devices, and test the sandbox and ratios."
    )
    parser.add_argument("check", nargs="*", help=f"only these: {', '.join(CHECKS)}")
    options = parser.parse_args(list(argv))
    for name in options.check:
        if name not in CHECKS:
            raise UserError("gspo doctor", f"{name!r} is not a check; it must be one of {', '.join(CHECKS)}")
    console = terminal()
    problems = 0
    notes = 0
    for name in options.check or CHECKS:
        findings = list(CHECKS[name]())
        problems += sum(finding.state == "problem" for finding in findings)
        notes += sum(finding.state == "note" for finding in findings)
        console.print(_table(name, findings))
    result = f"{problems} problem{'s' * (problems != 1)}" if problems else "no problems"
    if notes:
        result += f", {notes} note{'s' * (notes != 1)}"
    console.print(result)
    return int(problems > 0)


def _table(name: str, findings: Sequence[Finding]) -> Table:
    table = Table(title=name, title_justify="left")
    for heading, ratio in (("", 1), ("what", 3), ("found", 4), ("fix", 4)):
        table.add_column(heading, ratio=ratio, overflow="fold")
    for finding in findings:
        state = Text(finding.state, style=_COLOURS[finding.state])
        table.add_row(state, finding.what, finding.found, finding.fix)
    return table
