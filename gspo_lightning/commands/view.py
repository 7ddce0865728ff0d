"""``gspo view``: a page over runs, with their curves, answers, tokens and conversations."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from pathlib import Path

from gspo_lightning.core.escape import say
from gspo_lightning.report.run import labels
from gspo_lightning.report.view.page import write_page
from gspo_lightning.report.view.run_data import RunData
from gspo_lightning.report.view.server import ViewServer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "runs", type=Path, nargs="+", metavar="RUN_DIR", help="run folders, finished or not: runs/NAME/version_0"
    )
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
    """Open each folder once, and give the runs distinct labels.

    Raises:
        UserError: one is not a run folder.
    """
    unique = list({folder.resolve(): folder for folder in folders}.values())
    runs = [RunData(folder, number) for number, folder in enumerate(unique)]
    for run, label in zip(runs, labels([run.run for run in runs]), strict=True):
        run.label = label
    return runs


async def _serve(server: ViewServer) -> None:
    address = await server.start()
    say(f"{len(server.runs)} run{'' if len(server.runs) == 1 else 's'} at {address}   (Ctrl-C ends it)", flush=True)
    try:
        await asyncio.Event().wait()
    finally:
        await server.stop()
