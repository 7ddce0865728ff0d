"""Makes the missing runs of a grid, then writes its page: ``python -m experiments.lab length --minutes 30``.

It can be stopped at any time and started again: a finished run stays.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from experiments.lab.grid import GRIDS, Grid, names
from experiments.lab.page import draw, page
from experiments.lab.results import is_done, make, read
from gspo_lightning.cli import main as gspo
from gspo_lightning.commands.compare.runs import RunInterruptedError
from gspo_lightning.commands.fit.configs import config_file
from gspo_lightning.core.errors import UserError
from gspo_lightning.report.style import save


def main(argv: Sequence[str]) -> int:
    """Run and report; 2 where a run is refused, the exit code of a run that a signal has stopped."""
    parser = argparse.ArgumentParser("experiments.lab", description=__doc__)
    parser.add_argument("grid", help=f"{', '.join(names())}, or a file")
    parser.add_argument("--root", type=Path, default=Path("runs/lab"), help="of all runs and cold starts")
    parser.add_argument(
        "--output", type=Path, default=Path("experiments/lab/results"), help="folder of the page and the picture"
    )
    parser.add_argument("--minutes", type=float, default=30.0, help="no run is begun after so many; 0 only reads")
    options = parser.parse_args(list(argv))
    try:
        return _run(options)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except RunInterruptedError as stopped:
        print(stopped, file=sys.stderr)
        return stopped.code


def _run(options: argparse.Namespace) -> int:
    path = GRIDS / f"{options.grid}.yaml"
    grid = Grid.read(path if path.is_file() else Path(options.grid))
    root, start = options.root / grid.name, time.monotonic()
    configs = [config_file(name) for name in grid.configs]
    cells = list(grid.cells())
    for number, cell in enumerate(cells, 1):
        if is_done(cell, root):
            continue
        if time.monotonic() - start >= options.minutes * 60:
            print("out of time; the same command continues")
            break
        print(f"{number}/{len(cells)}")
        make(cell, configs, root, gspo)
    results = read(grid, root)
    options.output.mkdir(parents=True, exist_ok=True)
    target = options.output / f"{grid.name}.md"
    any_run = len(results.missing) + len(results.failed) < len(cells)
    if any_run:
        save(draw(grid, results), target.with_suffix(".png"))
    command = f"python -m experiments.lab {options.grid}"
    target.write_text(
        page(grid, results, command, target.with_suffix(".png").name if any_run else ""), encoding="utf-8"
    )
    print(f"written: {target}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
