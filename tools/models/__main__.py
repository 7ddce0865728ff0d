"""The command line: ``python -m tools.models``."""

from __future__ import annotations

import argparse
import fnmatch
import os
import platform
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import tools.models
from tools.models.pool import measure_all, serve


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser("python -m tools.models", description=tools.models.__doc__)
    parser.add_argument("--family", action="append", help="only model types that match this glob; may be repeated")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at a time, of one thread each")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for a family")
    parser.add_argument("--memory", type=float, default=16.0, help="GiB of address space of a process")
    parser.add_argument("--output", type=Path, help="Markdown; else into docs/models.md when every family is tried")
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 1 where a family is neither right nor refused."""
    args = parse(argv)
    if args.serve is not None:
        serve(args.serve)
        return 0
    from tqdm import tqdm

    from tools.models.measure import Row
    from tools.models.table import PATH, inserted, write
    from tools.models.tiny import FAMILIES

    wanted = [f for f in FAMILIES if any(fnmatch.fnmatch(f, glob) for glob in args.family or ["*"])]
    if not wanted:
        print("models: no family matches")
        return 2
    rows: list[Row] = []
    with tqdm(total=len(wanted), unit="family") as bar:

        def done(found: dict[str, object]) -> None:
            rows.append(row := Row(**found))  # type: ignore[arg-type]
            bar.set_description(row.family[:24].ljust(24))
            bar.update()

        measure_all(wanted, args.jobs, args.limit, int(args.memory * 2**30), done)
    versions = {name: version(name).split("+")[0] for name in ("transformers", "torch")}
    text = write(rows, versions | {"python": platform.python_version()})
    if args.output:
        args.output.write_text(text)
    elif len(wanted) == len(FAMILIES):
        PATH.write_text(inserted(text, PATH.read_text()))
    else:
        print(text[text.index("### ") :])
    wrong = [row for row in rows if row.wrong]
    for row in wrong:
        print(f"neither right nor refused: {row.family}, training {row.training:.2g}, sampling {row.sampling:.2g} nats")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
