"""``gspo doctor``: print a table for each check and return an exit code."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from gspo_lightning.commands.doctor.checks import CHECKS
from gspo_lightning.commands.doctor.finding import Finding
from gspo_lightning.errors import UserError
from gspo_lightning.escape import terminal

__all__ = ["main"]

_COLOURS = {"ok": "green", "note": "yellow", "problem": "red"}


def main(argv: Sequence[str]) -> int:
    """Print a table per check; return 1 if any finding is a problem, else 0."""
    parser = argparse.ArgumentParser(
        "gspo doctor", description="Versions, devices, and self-tests of the sandbox and of ratios."
    )
    parser.add_argument("check", nargs="*", help=f"only these: {', '.join(CHECKS)}")
    options = parser.parse_args(list(argv))
    for name in options.check:
        if name not in CHECKS:
            raise UserError("gspo doctor", f"{name!r} is not a check; it must be one of {', '.join(CHECKS)}")
    console = terminal()
    problems = notes = 0
    for name in options.check or CHECKS:
        findings = list(CHECKS[name]())
        problems += sum(finding.state == "problem" for finding in findings)
        notes += sum(finding.state == "note" for finding in findings)
        console.print(_table(name, findings))
    found = f"{problems} problem{'s' * (problems != 1)}" if problems else "no problems"
    console.print(found + f", {notes} note{'s' * (notes != 1)}" * (notes > 0))
    return int(problems > 0)


def _table(name: str, findings: Sequence[Finding]) -> Table:
    table = Table(title=name, title_justify="left")
    for heading, ratio in (("", 1), ("what", 3), ("found", 4), ("fix", 4)):
        table.add_column(heading, ratio=ratio, overflow="fold")
    for finding in findings:
        state = Text(finding.state, style=_COLOURS[finding.state])
        table.add_row(state, finding.what, finding.found, finding.fix)
    return table
