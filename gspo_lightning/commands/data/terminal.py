"""Terminal of the verbs: shared arguments, the progress bar of a pass over files, tables of record counts."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from rich.table import Table
from tqdm import tqdm

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.escape import say, terminal
from gspo_lightning.data.corpus.files import Inputs, Record
from gspo_lightning.data.corpus.output import dropped_file

_STEP = 256


def add_files(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    """Add ``--input`` and ``--output``."""
    parser.add_argument(
        "--input", nargs="+", type=Path, required=required, metavar="FILE", help="JSON lines or Parquet"
    )
    parser.add_argument(
        "--output", type=Path, required=True, metavar="FILE", help="of the same format; nothing is overwritten"
    )


def add_column(parser: argparse.ArgumentParser) -> None:
    """Add ``--column``."""
    parser.add_argument("--column", default="prompt", metavar="NAME", help="with the prompt (default: prompt)")


def add_threshold(parser: argparse.ArgumentParser) -> None:
    """Add ``--threshold``."""
    parser.add_argument(
        "--threshold",
        type=float,
        default=0.7,
        metavar="T",
        help="similarity (Jaccard, of character 5-grams) from which two prompts are near-duplicates (default: 0.7)",
    )


def check_threshold(value: float) -> None:
    """Check that MinHash can find near-duplicates at this similarity.

    Raises:
        UserError: the similarity is outside of 0.3 to 1.
    """
    if not 0.3 <= value <= 1:
        raise UserError("--threshold", f"is {value:g}; it must lie in 0.3 to 1", fix="0.7 for near-duplicates")


@contextmanager
def reading(inputs: Inputs, what: str) -> Iterator[Callable[[Record], None]]:
    """Show a bar for one pass; yields a function to call with each record. JSONL counts bytes, Parquet counts rows."""
    lines = inputs.format == ".jsonl"
    total, unit = (inputs.bytes, "B") if lines else (inputs.rows, " records")
    records = 0
    progress = 0
    with tqdm(desc=what, total=total, unit=unit, unit_scale=True) as bar:

        def step(record: Record) -> None:
            nonlocal records, progress
            records += 1
            progress += len(record.raw) if lines else 1
            if records >= _STEP:  # a call of the bar for every record would take time
                bar.update(progress)
                records = 0
                progress = 0

        yield step
        bar.update(progress)


def show(title: str, rows: Mapping[str, int], total: int) -> None:
    """Print counts with their share of the total."""
    table = Table(title=title, title_justify="left")
    for name in ("", "records", "share"):
        table.add_column(name, justify="left" if not name else "right")
    for name, count in rows.items():
        table.add_row(name, f"{count:,}", f"{100 * count / total:.1f} %" if total else "-")
    terminal().print(table)


def dropped_table(verb: str, total: int, dropped: Mapping[str, int], output: Path) -> None:
    """Print the numbers of read, dropped and kept records, and the output files."""
    rows = {"read": total}
    rows |= {f"dropped: {reason}": count for reason, count in dropped.items()}
    rows["kept"] = total - sum(dropped.values())
    show(f"gspo data {verb}", rows, total)
    say(f"written: {output}")
    say(f"written: {dropped_file(output)}")
