"""Runs the cells that have no result yet, then writes the page: ``python -m experiments.paper_in_miniature``.

It can be stopped at any time and started again: a cell is done when its file is there. On one large GPU:
``python -m experiments.paper_in_miniature --device cuda`` (never run there so far).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from experiments.paper_in_miniature.grid import GRID, Grid
from experiments.paper_in_miniature.numbers import read_results
from experiments.paper_in_miniature.picture import draw
from experiments.paper_in_miniature.run import run
from experiments.paper_in_miniature.tables import page
from gspo_lightning.resume.files import write_text


def main(argv: Sequence[str]) -> int:
    """Run and report."""
    parser = argparse.ArgumentParser("experiments.paper_in_miniature", description=__doc__)
    parser.add_argument("--grid", type=Path, default=GRID, help="declares the cells")
    parser.add_argument("--root", type=Path, default=Path("runs/paper_in_miniature"), help="results and cold starts")
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--page", type=Path, default=Path("experiments/paper_in_miniature/results.md"), help="is written at the end"
    )
    parser.add_argument("--minutes", type=float, default=30.0, help="no cell is begun after so many")
    options = parser.parse_args(list(argv))
    grid = Grid.read(options.grid)
    results = options.root / "results"
    results.mkdir(parents=True, exist_ok=True)
    cells, start = list(grid.cells()), time.monotonic()
    for number, cell in enumerate(cells):
        target = results / f"{cell.name}.json"
        if target.exists():
            continue
        if time.monotonic() - start > options.minutes * 60:
            print(f"stopped after {options.minutes:g} minutes; start again to go on")
            break
        result = run(cell, grid.declared, options.root, options.device)
        target.parent.mkdir(parents=True, exist_ok=True)
        write_text(target, json.dumps({"cell": dataclasses.asdict(cell), **result}))
        shown = f"{result['accuracy_before']:.2f} -> {result['accuracy_after']:.2f}"
        print(f"{number + 1}/{len(cells)} {cell.name}: accuracy {shown}, {result['seconds']} s", flush=True)
    command = "python -m experiments.paper_in_miniature"
    options.page.parent.mkdir(parents=True, exist_ok=True)
    found, picture = read_results(results), options.page.with_suffix(".png")
    if found:
        draw(grid, found).savefig(picture)
    options.page.write_text(page(grid, found, command, picture.name if found else ""), encoding="utf-8")
    print(f"written: {options.page}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
