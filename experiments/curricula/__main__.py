"""``python -m experiments.curricula``: the runs that are missing, then the page and the picture."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from experiments.curricula.numbers import read_all
from experiments.curricula.page import draw, page
from experiments.curricula.run import RUNS, VARIANTS, run_all
from gspo_lightning.report.save import save


def main(argv: Sequence[str]) -> int:
    """Run, then write."""
    parser = argparse.ArgumentParser("experiments.curricula", description=__doc__)
    parser.add_argument("--seeds", nargs="*", type=int, default=list(range(1, 9)))
    parser.add_argument("--iterations", type=int, default=30)
    parser.add_argument("--root", type=Path, default=Path("runs/curricula"))
    parser.add_argument("--output", type=Path, default=Path("docs/curricula.md"))
    parser.add_argument("--only_read", action="store_true", help="make no runs: read those that are finished")
    options = parser.parse_args(list(argv))
    if not options.only_read:
        run_all(options.root, options.seeds, options.iterations)
    results = read_all(options.root / RUNS, VARIANTS, options.seeds)
    options.output.write_text(page(results, VARIANTS, options.iterations), encoding="utf-8")
    save(draw(results), options.output.with_suffix(".png"))
    print(f"written: {options.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
