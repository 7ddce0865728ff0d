"""Results as one table on the terminal, and as JSON and Markdown for ``benchmarks/results``."""

from __future__ import annotations

import datetime
import json
import platform
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from rich.console import Console
from rich.table import Table

from benchmarks.clock import Summary
from benchmarks.floor import MatmulRate
from benchmarks.memory import MemoryCase
from benchmarks.parity import ParityCase
from benchmarks.peers.trl import trl_version
from benchmarks.scaling import ScalingPoint
from benchmarks.step import Comparison

__all__ = ["Report", "about", "line", "show", "write"]

PHASES = ("generate", "old", "forward", "backward", "optimizer", "rest")


@dataclass
class Report:
    """Everything one run measured."""

    command: str = ""
    parity: list[ParityCase] = field(default_factory=list)
    comparisons: list[Comparison] = field(default_factory=list)
    memory: list[MemoryCase] = field(default_factory=list)
    scaling: list[ScalingPoint] = field(default_factory=list)
    matmul: MatmulRate | None = None


def line(report: Report) -> dict[str, Any]:
    """What a machine reads: ratios to TRL and to the floor; None for what did not run."""

    def step(model: str) -> Comparison | None:
        found = [c for c in report.comparisons if (c.subject, c.model, c.workload) == ("step", model, "balanced")]
        return found[0] if found else None

    ratios = {f"step_ratio_{m}": (c.ratio if (c := step(m)) else None) for m in ("10m", "1m", "moe")}
    peak = {case.case: case.mebibytes for case in report.memory}
    ours, trl = peak.get("ours"), peak.get("TRL, same micro-batch")
    dense = step("10m")
    return ratios | {
        "memory_ratio_v152k": trl / ours if ours and trl else None,
        "floor_ratio_10m": dense.floor_ratio if dense else None,
        "parity_ok": all(case.ok for case in report.parity) if report.parity else None,
    }


def _comparison_rows(report: Report) -> list[list[str]]:
    def seconds(s: Summary | None) -> str:
        return f"{s.cpu:.2f} ({s.cpu_low:.2f}-{s.cpu_high:.2f})" if s else "-"

    return [
        [
            *(c.subject, c.model, c.workload, str(c.response_tokens)),
            *(seconds(c.trl), seconds(c.ours)),
            f"{c.trl.wall if c.trl else 0:.1f}/{c.ours.wall:.1f}",
            "yes" if c.packed else "no",
            f"{1e3 * c.ours_per_token:.3f}",
            f"{c.ratio:.2f} ({c.ratio_low:.2f}-{c.ratio_high:.2f})" if c.ratio else "-",
            f"{c.floor_ratio:.2f}" if c.floor_ratio else "-",
            f"{c.ours.cpu / c.products:.2f}" if c.products else "-",
        ]
        for c in report.comparisons
    ]


COMPARISON = [
    *("what", "model", "workload", "tokens", "TRL, CPU s", "ours, CPU s"),
    *("wall s", "packed", "ours, ms/token", "TRL / ours", "ours / floor", "ours / products"),
]


def _phase_rows(report: Report) -> list[list[str]]:
    sides = [(c, name, s) for c in report.comparisons for name, s in (("TRL", c.trl), ("ours", c.ours)) if s]
    return [
        [c.subject, c.model, c.workload, name, *(f"{s.phases.get(p, 0.0):.2f}" for p in PHASES)] for c, name, s in sides
    ]


def _tables(report: Report) -> list[tuple[str, list[str], list[list[str]]]]:
    found: list[tuple[str, list[str], list[list[str]]]] = []
    if report.parity:
        rows = [
            [p.model, p.workload, f"{p.loss:.1e}", f"{p.gradient:.1e}", f"{p.clipped:.0%}", "yes" if p.ok else "NO"]
            for p in report.parity
        ]
        head = ["model", "workload", "loss, difference", "gradient, relative L2", "rows clipped", "same"]
        found.append(("Parity with TRL on its own rollouts", head, rows))
    if report.comparisons:
        title = "Median (lowest-highest) over rounds; the ratio's extremes are of single rounds; wall: TRL / ours"
        found.append((title, COMPARISON, _comparison_rows(report)))
        found.append(
            ("CPU seconds by phase, medians", ["what", "model", "workload", "side", *PHASES], _phase_rows(report))
        )
    if report.memory:
        ours = next((m.mebibytes for m in report.memory if m.case == "ours"), None)
        rows = [
            [m.case, str(m.rows), str(m.response_tokens), f"{m.mebibytes:.0f}", _over(m.mebibytes, ours)]
            for m in report.memory
        ]
        head = ["case", "rows per forward", "response tokens", "extra peak, MiB", "/ ours"]
        found.append((f"Memory of one mini-batch, V = {report.memory[0].vocabulary:,}", head, rows))
    if report.scaling:
        rows = [
            [s.varied, str(s.value), str(s.response_tokens), f"{s.trl:.3f}" if s.trl else "-", f"{s.ours:.3f}",
             f"{s.ratio:.2f}" if s.ratio else "-"]
            for s in report.scaling
        ]  # fmt: skip
        head = ["varied", "value", "response tokens", "TRL, ms/token", "ours, ms/token", "TRL / ours"]
        found.append(("Scaling: CPU milliseconds per trained response token of a whole step", head, rows))
    return found


def _over(a: float, b: float | None) -> str:
    return f"{a / b:.1f}" if b else "-"


def show(report: Report) -> None:
    """Print the tables."""
    console = Console(width=150)
    for title, head, rows in _tables(report):
        table = Table(*head, title=title, title_justify="left")
        for row in rows:
            table.add_row(*row)
        console.print(table)
    if report.matmul:
        console.print(f"float32 matmul, one thread: {report.matmul.best / 1e9:.1f} GFLOP/s")


def write(report: Report, folder: Path, name: str) -> None:
    """``name.json`` and ``name.md`` with versions, hardware, commit and command."""
    facts = about(report.command)
    folder.mkdir(parents=True, exist_ok=True)
    data = {"about": facts, "line": line(report), **asdict(report)}
    (folder / f"{name}.json").write_text(json.dumps(data, indent=1) + "\n")
    text = [f"# {name}", "", *(f"* {k}: {v}" for k, v in facts.items()), ""]
    if report.matmul:
        rates = ", ".join(f"{size}: {rate / 1e9:.1f}" for size, rate in report.matmul.by_size.items())
        text += [f"* float32 matmul in the same run, GFLOP/s by size: {rates}", ""]
    for title, head, rows in _tables(report):
        text += [f"## {title}", "", f"| {' | '.join(head)} |", "|" + " --- |" * len(head)]
        text += [f"| {' | '.join(row)} |" for row in rows] + [""]
    (folder / f"{name}.md").write_text("\n".join(text))


def about(command: str) -> dict[str, Any]:
    """Date, command, versions and processor of a run."""
    commit = subprocess.run(
        ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="minutes"),
        "command": command,
        "commit": commit or "unknown",
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "trl": trl_version(),
        "processor": _processor(),
        "threads": torch.get_num_threads(),
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for row in info.read_text().splitlines():
            if row.startswith("model name"):
                return row.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
