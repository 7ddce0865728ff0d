"""``python -m experiments.curricula``: makes the missing runs, then writes the page and the picture."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from experiments.curricula.numbers import read_all
from experiments.curricula.page import draw, page
from experiments.curricula.run import CONFIG, RUNS, VARIANTS, run_all
from gspo_lightning.report.style import save


def main(argv: Sequence[str]) -> int:
    """Run, then write; the exit code of ``gspo`` if a run did not finish."""
    parser = argparse.ArgumentParser("experiments.curricula", description=__doc__)
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS), metavar="NAME")
    parser.add_argument("--seeds", nargs="+", type=int, default=list(range(1, 9)))
    parser.add_argument("--iterations", type=int, default=30)
    parser.add_argument("--root", type=Path, default=Path("runs/curricula"))
    parser.add_argument("--output", type=Path, default=Path("experiments/curricula/results.md"))
    parser.add_argument("--config", type=Path, default=CONFIG, help="of every run")
    parser.add_argument("--only_read", action="store_true", help="make no runs: read those that are finished")
    options = parser.parse_args(list(argv))
    variants = {name: VARIANTS[name] for name in options.variants}
    if not options.only_read:
        code = run_all(options.root, options.config, variants, options.seeds, options.iterations)
        if code:
            return code
    results = read_all(options.root / RUNS, variants, options.seeds)
    if not any(results.values()):
        parser.error(f"--root: {options.root} holds no seed that every variant has finished")
    options.output.write_text(page(results, variants, options.iterations), encoding="utf-8")
    save(draw(results), options.output.with_suffix(".png"))
    print(f"written: {options.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
