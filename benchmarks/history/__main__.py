"""``python -m benchmarks.history FILE.json ...``: add committed results to the history, and write its page anew."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.history import FOLDER, add, lines_of, read, table


def main(argv: Sequence[str]) -> int:
    """Add results of ``python -m benchmarks --output`` or ``--against``; what is there already is left out."""
    parser = argparse.ArgumentParser("python -m benchmarks.history", description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, help="JSON of python -m benchmarks --output, or of --against")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the history is")
    given = parser.parse_args(argv)
    new = add(given.folder, [line for file in given.files for line in lines_of(file)])
    (given.folder / "README.md").write_text(table(read(given.folder)))
    print(f"{new} new lines in {given.folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
