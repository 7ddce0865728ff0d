"""``python -m experiments.dealing``: the runs that are missing, then the page and the pictures."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from experiments.dealing.run import TASKS, run_all


def main(argv: Sequence[str]) -> int:
    """Run, then write."""
    parser = argparse.ArgumentParser("experiments.dealing", description=__doc__)
    parser.add_argument("--tasks", nargs="*", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--seeds", nargs="*", type=int, default=list(range(1, 9)))
    parser.add_argument("--minutes", type=float, help="begin no further seed after this time; repeat to go on")
    parser.add_argument("--root", type=Path, default=Path("runs/dealing"))
    options = parser.parse_args(list(argv))
    run_all(options.root, options.tasks, options.seeds, options.minutes)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
