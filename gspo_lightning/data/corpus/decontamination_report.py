"""Decontamination report of a file, ``FILE.decontaminated.json``: benchmarks checked, rules, hashes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.parsing import load_json
from gspo_lightning.data.corpus.files import sha256


@dataclass(frozen=True, slots=True)
class Benchmark:
    """File of benchmark prompts with its hash."""

    file: str
    sha256: str
    prompts: int


@dataclass(frozen=True, slots=True)
class DecontaminationReport:
    """Statement that no prompt of a file leaks one of these benchmarks, by these rules."""

    sha256: str
    """Hash of the file."""
    against: tuple[Benchmark, ...]
    rules: Mapping[str, Any]
    dropped: Mapping[str, int] = field(default_factory=dict)
    """Records dropped, by the rule they broke; empty for a file made from one that already has a report."""
    version: str = ""
    """Version of this package."""

    def as_json(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)

    def covers(self, file: Path) -> bool:
        """True if a file is among the benchmarks, byte by byte."""
        return sha256(file) in {benchmark.sha256 for benchmark in self.against}


def report_file(path: Path) -> Path:
    """Return the path of a file's decontamination report."""
    return path.with_name(f"{path.name}.decontaminated.json")


def read_report(path: Path) -> DecontaminationReport | None:
    """Read the decontamination report of a file, even if its hash is not the file's; None if there is none.

    Raises:
        UserError: there is one that cannot be read.
    """
    file = report_file(path)
    if not file.is_file():
        return None
    try:
        fields = load_json(file.read_text(encoding="utf-8"))
        against = tuple(Benchmark(**benchmark) for benchmark in fields["against"])
        return DecontaminationReport(**{**fields, "against": against})
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UserError(
            file.name, "is not a decontamination report of gspo data decontaminate", fix="remove it"
        ) from error


def inherited(inputs: Sequence[Path]) -> DecontaminationReport | None:
    """Return a report for a file made of records of these files only: it lists the benchmarks common to all.

    The hash is left empty, for the file is still to be written. Return None if a file has no report that fits it,
    if the rules differ, or if no benchmark is common.
    """
    reports = []
    for path in inputs:
        report = read_report(path)
        if report is None or report.sha256 != sha256(path):
            return None
        reports.append(report)
    hashes = [{benchmark.sha256 for benchmark in report.against} for report in reports]
    common = set.intersection(*hashes)
    first = reports[0]
    against = tuple(benchmark for benchmark in first.against if benchmark.sha256 in common)
    same_rules = all(report.rules == first.rules for report in reports)
    if not against or not same_rules:
        return None
    return DecontaminationReport("", against, first.rules, version=first.version)


def about(path: Path) -> tuple[str, bool] | None:
    """Return one line about a file's decontamination report, and True if it is valid; None if there is none.

    Raises:
        UserError: there is one that cannot be read.
    """
    report = read_report(path)
    if report is None:
        return None
    names = ", ".join(f"{benchmark.file} ({benchmark.prompts:,} prompts)" for benchmark in report.against)
    if report.sha256 == sha256(path):
        return f"{path.name}: decontaminated against {names}", True
    return (
        f"{path.name} is not the file that {report_file(path).name} was written for: its hash differs; "
        "run gspo data decontaminate again",
        False,
    )
