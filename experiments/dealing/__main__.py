"""``python -m experiments.dealing``: the runs that are missing, then the page and the picture."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from experiments.dealing.numbers import Numbers, read_task
from experiments.dealing.page import page, read_price
from experiments.dealing.run import TASKS, compare, run_all

PRICE = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "dealing.json"


def main(argv: Sequence[str]) -> int:
    """Run, then write."""
    parser = argparse.ArgumentParser("experiments.dealing", description=__doc__)
    parser.add_argument("--tasks", nargs="*", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--seeds", nargs="*", type=int, default=list(range(1, 9)))
    parser.add_argument("--minutes", type=float, help="begin no further seed after this time; repeat to go on")
    parser.add_argument("--root", type=Path, default=Path("runs/dealing"))
    parser.add_argument("--output", type=Path, default=Path("experiments/dealing/results.md"))
    parser.add_argument("--only_read", action="store_true", help="make no runs: read those that are finished")
    options = parser.parse_args(list(argv))
    if not options.only_read:
        run_all(options.root, options.tasks, options.seeds, options.minutes)
    results: dict[str, dict[str, dict[int, Numbers]]] = {}
    for name, task in TASKS.items():
        found = read_task(options.root / name, task.deals, options.seeds)
        if there := list(found[task.deals[0]]):
            results[name] = found
            compare(options.root, name, there)  # every run is there: its page and picture
    options.output.write_text(page(results, read_price(PRICE)), encoding="utf-8")
    picture = options.root / "quickstart" / "runs" / "compare.png"
    if picture.is_file():
        shutil.copyfile(picture, options.output.with_suffix(".png"))
    print(f"written: {options.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
