"""``gspo view``: a page over runs, with a list of them, their curves, answers, tokens and conversations."""

from __future__ import annotations

import argparse
import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path

from gspo_lightning.core.errors import UserError, first_line
from gspo_lightning.core.escape import say
from gspo_lightning.report.read import is_run_folder, runs_below
from gspo_lightning.report.run import labels
from gspo_lightning.report.view.page import write_page
from gspo_lightning.report.view.run_data import RunData, stamp_of
from gspo_lightning.report.view.server import ViewServer

log = logging.getLogger(__name__)
LISTED = 100
"""Runs below a folder that are listed, at most, those that changed last."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "runs", type=Path, nargs="+", metavar="RUN_DIR",
        help="run folders, finished or not: runs/NAME/version_0; or a folder of runs, to list those in it: runs",
    )  # fmt: skip
    parser.add_argument("--output", type=Path, metavar="RUN.html", help="write the page as one file, and serve nothing")
    parser.add_argument("--port", type=int, default=8060, help="port to listen on, 0: any that is free; default: 8060")
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on; another than this machine's needs --token"
    )
    parser.add_argument("--token", default="", help="word that the address must end with: ?token=WORD")


def main(argv: Sequence[str]) -> int:
    """Serve the page until Ctrl-C, or write it.

    Raises:
        UserError: a folder is not a run, the port is taken, or the file cannot be written.
    """
    parser = argparse.ArgumentParser("gspo view", description="Show runs on a page: curves, answers, tokens, hints.")
    add_arguments(parser)
    options = parser.parse_args(list(argv))
    runs = open_runs(options.runs)
    if options.output is not None:
        write_page(runs, options.output)
        for run in runs:
            run.index.close()
        say(f"written: {options.output}")
        return 0
    asyncio.run(_serve(ViewServer(runs, options.host, options.port, options.token)))
    return 0


def open_runs(folders: Sequence[Path]) -> list[RunData]:
    """Open each run once, those below a folder of runs included, and give the runs distinct labels.

    Raises:
        UserError: a folder is neither a run folder nor has one below it.
    """
    runs: list[RunData] = []
    for folder in folders:
        if is_run_folder(folder) or not folder.is_dir():
            _add(runs, folder)
        else:
            _add_below(runs, folder)
    for run, label in zip(runs, labels([run.run for run in runs]), strict=True):
        run.label = label
    return runs


def _add(runs: list[RunData], folder: Path, *, listed: bool = False) -> None:
    """Open a run folder, unless it is among the runs.

    Raises:
        UserError: it is not a run folder.
    """
    if folder.resolve() not in {run.folder.resolve() for run in runs}:
        runs.append(RunData(folder, len(runs), listed=listed))


def _add_below(runs: list[RunData], top: Path) -> None:
    """Open the run folders below a folder, the newest first; one that cannot be read is left out with a warning.

    Raises:
        UserError: there is none that can be read.
    """
    below = sorted(runs_below(top), key=lambda folder: -stamp_of(folder)[1])  # not by the folder: a view changes it
    if not below:
        _add(runs, top)  # which says what is missing
    if len(below) > LISTED:
        log.warning("%s has %d runs; the %d that changed last are listed", top, len(below), LISTED)
    problems: list[UserError] = []
    for folder in below[:LISTED]:
        try:
            _add(runs, folder, listed=True)
        except UserError as problem:
            log.warning("%s is left out: %s", folder, first_line(problem))
            problems.append(problem)
    if problems and len(problems) == len(below[:LISTED]):
        raise problems[0]


async def _serve(server: ViewServer) -> None:
    address = await server.start()
    say(f"{len(server.runs)} run{'' if len(server.runs) == 1 else 's'} at {address}   (Ctrl-C ends it)", flush=True)
    try:
        await asyncio.Event().wait()
    finally:
        await server.stop()
