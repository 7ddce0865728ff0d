"""``gspo report``: the curves of one or several runs as ``report.png``, and a page in words as ``report.md``."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from gspo_lightning.errors import UserError
from gspo_lightning.report.figure import draw
from gspo_lightning.report.run import Run, labels, read_run
from gspo_lightning.report.words import headline, table, verdicts

__all__ = ["add_arguments", "main", "write_report"]

PICTURE, PAGE = "report.png", "report.md"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument(
        "runs", type=Path, nargs="+", metavar="RUN_DIR", help="run folders, such as runs/NAME/version_0"
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help="where to write; default: the run folder, or for several runs the folder that holds the first one",
    )


def main(argv: Sequence[str]) -> int:
    """Write the report and show its table.

    Raises:
        UserError: a folder is not a run.
    """
    parser = argparse.ArgumentParser("gspo report", description="Curves of runs, and a page in words.")
    add_arguments(parser)
    options = parser.parse_args(list(argv))
    runs = _read(options.runs)
    out = options.output or (runs[0].folder if len(runs) == 1 else runs[0].folder.resolve().parent)
    picture = _write(runs, out)
    _show(runs)
    for path in (picture, picture.with_name(PAGE)):
        Console(highlight=False).print(f"written: {path}", soft_wrap=True, markup=False)
    return 0


def write_report(run_dirs: Sequence[Path], out: Path) -> Path:
    """Write ``report.png`` and ``report.md``; unfinished and killed runs are reported as far as they went.

    Args:
        run_dirs: one run folder, or several to draw side by side.
        out: the folder to write into, made if missing.

    Returns:
        The path of the picture.

    Raises:
        UserError: a folder is not a run, or ``out`` cannot be written.
    """
    return _write(_read(run_dirs), out)


def _read(run_dirs: Sequence[Path]) -> list[Run]:
    unique = list({Path(d).resolve(): Path(d) for d in run_dirs}.values())
    if not unique:
        raise UserError("gspo report", "no run folder given", fix="gspo report runs/NAME/version_0")
    runs = [read_run(folder) for folder in unique]
    for run, label in zip(runs, labels(runs), strict=True):
        run.label = label
    return runs


def _write(runs: Sequence[Run], out: Path) -> Path:
    try:
        out.mkdir(parents=True, exist_ok=True)
        unfinished = out / f".{PICTURE}.unfinished"
        draw(runs).savefig(unfinished, format="png")
        os.replace(unfinished, out / PICTURE)
        unfinished = out / f".{PAGE}.unfinished"
        unfinished.write_text(page(runs), encoding="utf-8")
        os.replace(unfinished, out / PAGE)
    except OSError as error:
        raise UserError("--output", f"{out} cannot be written: {error}", fix="choose a folder with --output") from error
    return out / PICTURE


def page(runs: Sequence[Run]) -> str:
    """The Markdown page."""
    one = len(runs) == 1
    title = f"{runs[0].objective}, seed {runs[0].seed}" if one else " / ".join(run.label for run in runs)
    lines = [f"# {title}", ""]
    for run in runs:
        start = _sentence(headline(run)) if one else f"- **{run.label}**: {headline(run)}"
        lines.append(f"{start}. Model {run.model}, {run.date}, `{run.folder}`.")
    lines += ["", f"![curves]({PICTURE})", "", *_markdown_table(runs), "## Verdict", ""]
    for run in runs:
        lines += [] if one else [f"### {run.label}", ""]
        found = verdicts(run)
        lines += [f"- **{_sentence(v.topic)}: {v.word}.** {_sentence(v.sentence)}." for v in found] or [
            "Nothing was logged."
        ]
        lines += ["", *(f"> {_cell(problem)}\n" for problem in run.problems)]
    for run in runs:
        lines += _examples(run, "" if one else f": {run.label}")
    lines.append("What every number means: docs/metrics.md of gspo_lightning.")
    return "\n".join(lines) + "\n"


def _markdown_table(runs: Sequence[Run]) -> list[str]:
    heads = ["before → after"] if len(runs) == 1 else [_cell(run.label) for run in runs]
    lines = ["| | " + " | ".join(heads) + " |", "|---|" + "---|" * len(runs)]
    lines += [f"| {name} | " + " | ".join(cells) + " |" for name, cells in table(runs)]
    note = "An arrow goes from the first to the last iteration, or evaluation; other numbers are over the whole run."
    return [*lines, "", note, ""]


def _examples(run: Run, suffix: str) -> list[str]:
    found = [e for e in run.summary.get("examples") or [] if isinstance(e, dict)]
    if not found:
        return []
    names = ("prompt", "answer", "before", "after")
    lines = [f"## Examples{suffix}", "", "| " + " | ".join(names) + " |", "|---" * len(names) + "|"]
    lines += ["| " + " | ".join(_code(str(e.get(name, ""))) for name in names) + " |" for e in found]
    return [*lines, ""]


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _code(text: str, limit: int = 400) -> str:
    """Model text as code, so that none of it is taken for Markdown."""
    short = text if len(text) <= limit else text[: limit - 1] + "…"
    return (
        "`" + short.replace("`", "'").replace("|", "\\|").replace("\r", "").replace("\n", "⏎") + "`" if short else " "
    )


def _show(runs: Sequence[Run]) -> None:
    console = Console(highlight=False)
    if len(runs) == 1:
        console.print(f"{runs[0].objective}, seed {runs[0].seed}: {headline(runs[0])}", markup=False, soft_wrap=True)
    rows = Table()
    rows.add_column("")
    for run in runs:
        rows.add_column(run.label, overflow="fold")
    for name, cells in table(runs):
        rows.add_row(name, *cells)
    console.print(rows)
    for run in runs:
        if len(runs) == 1:
            for v in verdicts(run):
                console.print(f"{v.topic}: {v.word} ({v.sentence})", markup=False, soft_wrap=True)
        for problem in run.problems:
            console.print(
                f"note{'' if len(runs) == 1 else ' on ' + run.label}: {problem}", markup=False, soft_wrap=True
            )
