"""Table and Markdown page of a comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.table import Table

from gspo_lightning.commands.compare.stats import MEASURES, SEEDS_FOR_A_CLAIM, Measure, paired_difference
from gspo_lightning.escape import cell, fenced
from gspo_lightning.report.run import Run
from gspo_lightning.report.words import plain

__all__ = ["page", "summary_table"]

Runs = Mapping[str, Mapping[int, Run]]


def page(runs: Runs, command: str, picture: str) -> str:
    """Return a Markdown page with the values of every seed and variant, and the claims that they support."""
    names, seeds = list(runs), list(next(iter(runs.values())))
    lines = [f"# {cell(' / '.join(names))}", "", "The same prompts, seeds, draws and cold starts for all. Made by:", ""]
    lines += [fenced(command, "bash"), "", f"![curves]({picture})", ""]
    for measure in MEASURES:
        values = _values(measure, runs)
        if not any(v is not None for row in values.values() for v in row):
            continue
        lines += [f"## {measure.name[:1].upper()}{measure.name[1:]}", ""]
        lines += ["| | " + " | ".join(f"seed {s}" for s in seeds) + " | mean | than " + cell(names[0]) + " |"]
        lines += ["|---" * (len(seeds) + 3) + "|"]
        for name, row in values.items():
            cells = [plain(v) for v in row]
            lines.append(
                f"| {cell(name)} | {' | '.join(cells)} | {_average(row)} | {_verdict(values[names[0]], row)} |"
            )
        lines.append("")
    lines.append(
        f"Differences are paired by seed: mean [95% interval of a bootstrap over seeds]. Fewer than "
        f"{SEEDS_FOR_A_CLAIM} seeds support no claim, whatever the interval. No correction for looking at "
        f"{len(MEASURES)} measures."
    )
    return "\n".join(lines) + "\n"


def summary_table(runs: Runs) -> Table:
    """Return the terminal table: means over seeds, one column per variant."""
    table = Table(title=f"means over {len(next(iter(runs.values())))} seeds", title_justify="left")
    table.add_column("")
    for name in runs:
        table.add_column(name, justify="right", overflow="fold")
    for measure in MEASURES:
        values = _values(measure, runs)
        if any(v is not None for row in values.values() for v in row):
            table.add_row(measure.name, *(_average(row) for row in values.values()))
    return table


def _values(measure: Measure, runs: Runs) -> dict[str, list[float | None]]:
    return {name: [measure.of(run) for run in by_seed.values()] for name, by_seed in runs.items()}


def _average(row: Sequence[float | None]) -> str:
    known = [v for v in row if v is not None]
    return plain(sum(known) / len(known)) if len(known) == len(row) else "-"


def _verdict(first: Sequence[float | None], row: Sequence[float | None]) -> str:
    if first is row:
        return ""
    pairs = [(a, b) for a, b in zip(first, row, strict=True) if a is not None and b is not None]
    if not pairs:
        return "-"
    found = paired_difference([a for a, _ in pairs], [b for _, b in pairs])
    return f"{found.mean:+.3g} [{found.low:+.3g}, {found.high:+.3g}]: {found.words}"
