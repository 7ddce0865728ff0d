"""``gspo report``: draw the curves of runs as ``report.png`` and write a summary as ``report.md``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.escape import terminal
from gspo_lightning.report.page import PAGE, read_runs, write_runs
from gspo_lightning.report.run import Run
from gspo_lightning.report.verdicts import verdicts
from gspo_lightning.report.words import headline, table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
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
    """Write the report and print its table.

    Raises:
        UserError: a folder is not a run, or runs of policies and reward models are mixed.
    """
    parser = argparse.ArgumentParser("gspo report", description="Draw the curves of runs and write a summary.")
    add_arguments(parser)
    options = parser.parse_args(list(argv))
    runs = read_runs(options.runs)
    if any(run.of_reward_model for run in runs):
        return _reward_model(runs, options.output)
    out = options.output or (runs[0].folder if len(runs) == 1 else runs[0].folder.resolve().parent)
    picture = write_runs(runs, out)
    _show(runs)
    for path in (picture, picture.with_name(PAGE)):
        terminal().print(f"written: {path}", soft_wrap=True)
    return 0


def _reward_model(runs: Sequence[Run], output: Path | None) -> int:
    """Redraw the figure that ``gspo fit-reward`` draws at the end.

    Raises:
        UserError: several runs are given, and one is of a reward model.
    """
    if len(runs) > 1:
        of_reward_model = next(run for run in runs if run.of_reward_model)
        raise UserError(
            "gspo report",
            f"{of_reward_model.folder} is a run of gspo fit-reward, which cannot be drawn beside others",
            fix=f"report it alone: gspo report {of_reward_model.folder}",
        )
    from gspo_lightning.commands.fit_reward.finish import describe  # imports torch
    from gspo_lightning.training.reward_models.record import PICTURE, draw_again

    run = runs[0]
    picture = (output or run.folder) / PICTURE
    try:
        picture.parent.mkdir(parents=True, exist_ok=True)
        held_out = draw_again(run, picture)
    except OSError as error:
        problem = f"{picture.parent} cannot be written: {error}"
        raise UserError("--output", problem, fix="choose a folder with --output") from error
    lines = [f"reward model from {run.model}, seed {run.seed}: {run.updates:,} updates"]
    if held_out is not None:
        lines.append(describe(held_out))
    lines += [f"note: {problem}" for problem in run.problems]
    lines.append(f"written: {picture}")
    console = terminal()
    for line in lines:
        console.print(line, soft_wrap=True)
    return 0


def _show(runs: Sequence[Run]) -> None:
    console = terminal()
    if len(runs) == 1:
        console.print(f"{runs[0].objective}, seed {runs[0].seed}: {headline(runs[0])}", soft_wrap=True)
    rows = Table()
    rows.add_column("")
    for run in runs:
        rows.add_column(run.label, overflow="fold")
    for name, cells in table(runs):
        rows.add_row(name, *cells)
    console.print(rows)
    for run in runs:
        if len(runs) == 1:
            for verdict in verdicts(run):
                console.print(verdict.line, soft_wrap=True)
        note = "note" if len(runs) == 1 else f"note on {run.label}"
        for problem in run.problems:
            console.print(f"{note}: {problem}", soft_wrap=True)
