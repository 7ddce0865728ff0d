"""Terminal tables of record counts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rich.table import Table

from gspo_lightning.corpus.output import dropped_file
from gspo_lightning.escape import say, terminal

__all__ = ["dropped_table", "show"]


def show(title: str, rows: Mapping[str, int], total: int) -> None:
    """Print counts with their share of the total."""
    table = Table(title=title, title_justify="left")
    for name in ("", "records", "share"):
        table.add_column(name, justify="left" if not name else "right")
    for name, count in rows.items():
        table.add_row(name, f"{count:,}", f"{100 * count / total:.1f} %" if total else "-")
    terminal().print(table)


def dropped_table(verb: str, total: int, dropped: Mapping[str, int], output: Path) -> None:
    """Print the numbers of read, dropped and kept records, and the output files."""
    kept = total - sum(dropped.values())
    show(f"gspo data {verb}", {"read": total, **{f"dropped: {k}": n for k, n in dropped.items()}, "kept": kept}, total)
    say(f"written: {output}")
    say(f"written: {dropped_file(output)}")
