"""Terminal table of an evaluation's metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from gspo_lightning.core.escape import terminal


def number(metric: str, value: float | None) -> str:
    """Format a rating as a whole number and a share as a percentage.

    >>> number("rating", 1999.6), number("avg@8", 0.1234), number("avg@8", None)
    ('2000', '12.3 %', '-')
    """
    if value is None:
        return "-"
    return f"{value:.0f}" if metric.startswith("rating") else f"{100 * value:.1f} %"


def interval(metric: str, estimate: Mapping[str, Any]) -> str:
    """Format both ends of an interval; "-" if there is none."""
    if estimate["low"] is None:
        return "-"
    return f"{number(metric, estimate['low']).removesuffix(' %')} to {number(metric, estimate['high'])}"


def table(results: Mapping[str, Any]) -> None:
    """Print a table and the notes of each suite."""
    console = terminal()
    for suite, metrics in results.items():
        if suite == "run":
            continue
        rows = Table(title=suite, title_justify="left")
        for name in ("", "value", "95 %, problems like these", "95 %, these problems", "problems"):
            rows.add_column(name, justify="left" if not name else "right")
        for metric, estimate in metrics.items():
            these = {"low": None, "high": None, **estimate.get("these_problems", {})}
            value = number(metric, estimate["value"])
            rows.add_row(metric, value, interval(metric, estimate), interval(metric, these), str(estimate["n"]))
        console.print(rows)
        for note in results["run"]["notes"].get(suite, ()):
            console.print(f"note: {note}", soft_wrap=True)
