"""The table of one update beside float64 in benchmarks/results: ``python -m tests.updates`` writes it anew.

It trains every cell of ``tests/updates/cells.txt``, which takes about ten minutes. ``--choose`` writes that list
instead, after a change of its factors; words print the cells that have all of them, and write nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests import ROOT
from tests.updates.cells import CELLS, LIST, Cell, chosen
from tests.updates.measure import Error, measured

__all__ = ["PAGE", "listed", "main", "row", "written"]

PAGE = ROOT / "benchmarks" / "results" / "update_float64.md"
HEAD = "| run | on-policy | bound | off-policy | bound | critic | bound |"
LINE = re.compile(r"^\| (\w+, [^|]+?) \|", re.MULTILINE)


def row(cell: Cell, errors: list[Error]) -> str:
    """One line: of each kind of step the error that comes nearest to its bound."""
    kinds: dict[str, list[Error]] = {"on": [], "off": [], "critic": []}
    for error in errors:
        part, number = error.name.split()
        by_policy = "on" if int(number) % 2 else "off"
        kinds["critic" if part == "critic" else by_policy].append(error)
    columns = [cell.id]
    for of_kind in kinds.values():
        worst = max(of_kind, key=lambda error: error.error / error.bound, default=None)
        columns += ["", ""] if worst is None else [f"{worst.error:.1e}", f"{worst.bound:.1e}"]
    return f"| {' | '.join(columns)} |".replace("  ", " ")


def written(rows: list[str], text: str) -> str:
    """The page with a new table.

    Raises:
        ValueError: the page has no such table.
    """
    before, head, rest = text.partition(f"{HEAD}\n")
    if not head:
        raise ValueError(f"{PAGE.name} has no table that begins with {HEAD!r}")
    after = rest.partition("\n\n")[2]
    columns = HEAD.count("|") - 1
    return f"{before}{HEAD}\n|{'---|' * columns}\n" + "\n".join(rows) + f"\n\n{after}"


def listed(text: str) -> list[str]:
    """Cells of the page's table, in its order."""
    return LINE.findall(text.partition(f"{HEAD}\n")[2].partition("\n\n")[0])


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 1 if a step differs by more than its bound."""
    parser = argparse.ArgumentParser("python -m tests.updates", description=__doc__)
    parser.add_argument("words", nargs="*", help="only cells with all of these words, and no page")
    parser.add_argument("--choose", action="store_true", help="write the list of cells")
    given = parser.parse_args(argv)
    if given.choose:
        LIST.write_text("".join(f"{cell.id}\n" for cell in chosen()))
        return 0
    wrong = False
    rows: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for number, cell in enumerate(cell for cell in CELLS if all(word in cell.id for word in given.words)):
            with contextlib.redirect_stdout(io.StringIO()):  # of the run
                errors = measured(cell, Path(folder, str(number)))
            rows.append(row(cell, errors))
            failed = any(error.error > error.bound for error in errors)
            wrong = wrong or failed
            print(rows[-1], "WRONG" if failed else "", flush=True)
    if not given.words:
        PAGE.write_text(written(rows, PAGE.read_text()))
    return int(wrong)
