"""The Markdown page, and the table of survivors that compute the same."""

from __future__ import annotations

import platform
import tomllib
from collections import Counter
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import tools.mutants
from tools.mutants.mutant import KINDS
from tools.mutants.run import Result

_COLUMNS = "mutants | killed | time-out | survived, equivalent | survived, a gap | killed of the rest"


def accepted(path: Path) -> dict[str, str]:
    """Key of a mutant -> why it may survive."""
    if not path.exists():
        return {}
    groups = tomllib.loads(path.read_text()).get("accepted", [])
    return {key: " ".join(group["reason"].split()) for group in groups for key in group["mutants"]}


def share_killed(results: Sequence[Result]) -> float:
    """Of the mutants that do not compute the same; 1 if there are none."""
    count = _verdicts(results)
    killed = count["killed"] + count["time-out"]
    return killed / max(killed + count["gap"], 1) if results else 1.0


def report(results: list[Result], heading: dict[str, str], stale: Sequence[str]) -> str:
    """The Markdown page."""
    lines = ["# Mutation testing", "", _introduction(), ""]
    lines += [
        "Made by `make mutants`. An equivalent mutant computes the same: it is listed below with the reason, which is",
        "written down in `tools/accepted_mutants.toml`, and left out of the last column.",
        "",
        *(f"* {name}: {value}" for name, value in heading.items()),
        "",
    ]
    lines += [f"| file | {_COLUMNS} |", "|---|---|---|---|---|---|---|"]
    for file in dict.fromkeys(r.mutant.file for r in results):
        lines.append(f"| `{file}` | {_counts([r for r in results if r.mutant.file == file])} |")
    lines += [f"| **all** | {_counts(results)} |", ""]
    lines += [f"| kind | {_COLUMNS} |", "|---|---|---|---|---|---|---|"]
    lines += [f"| {k} | {_counts([r for r in results if r.mutant.kind == k])} |" for k in KINDS]
    lines += ["", _changes(), ""]
    lines += ["## Survivors that are gaps", "", *_listing([r for r in results if r.is_gap])]
    lines += ["## Survivors that compute the same", ""]
    reasons = dict.fromkeys(r.reason for r in results if r.reason is not None)
    for reason in reasons:
        lines += [f"{reason}", "", *_listing([r for r in results if r.reason == reason])]
    lines += [] if reasons else ["None.", ""]
    lines += ["## Time-outs (counted as killed)", ""]
    lines += _listing([r for r in results if r.outcome.verdict == "time-out"])
    if stale:
        lines += ["## Accepted, but not found any more", "", *(f"* `{key}`" for key in stale), ""]
    return "\n".join(lines).rstrip() + "\n"


def versions() -> str:
    """Of what decides whether a mutant survives."""
    found = [f"Python {platform.python_version()}"]
    for name in ("torch", "hypothesis", "pytest"):
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return ", ".join(found)


def _introduction() -> str:
    return (tools.mutants.__doc__ or "").partition("\n\n    python")[0].strip()


def _changes() -> str:
    _, what, text = (tools.mutants.__doc__ or "").partition("What is changed:")
    return (what + text).replace("``", "`").strip()


def _verdicts(part: Sequence[Result]) -> Counter[str]:
    return Counter("equivalent" if r.reason else "gap" if r.is_gap else r.outcome.verdict for r in part)


def _counts(part: Sequence[Result]) -> str:
    count = _verdicts(part)
    known = count["killed"] + count["time-out"] + count["gap"]
    share = f"{100 * share_killed(part):.1f} %" if known else "-"
    columns = (len(part), count["killed"], count["time-out"], count["equivalent"], count["gap"], share)
    return " | ".join(str(c) for c in columns)


def _listing(part: Sequence[Result]) -> list[str]:
    if not part:
        return ["None.", ""]
    lines = ["```diff"]
    for r in part:
        lines += [f"@@ {r.mutant.file}:{r.mutant.line} {r.mutant.kind}", f"- {r.mutant.old}", f"+ {r.mutant.new}"]
    return [*lines, "```", ""]
