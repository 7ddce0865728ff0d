"""Pass counts per record, and writing them as columns into a copy of the records."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tqdm import tqdm

from gspo_lightning.corpus.files import Inputs, Record
from gspo_lightning.corpus.output import common_schema, whole_line
from gspo_lightning.statistics.beta import beta_interval

__all__ = ["COLUMNS", "Tally", "columns_of", "journal_of", "rewrite"]

COLUMNS = ("pass_rate", "pass_rate_low", "pass_rate_high", "pass_samples")


class Tally(NamedTuple):
    """Number of passes and of scored responses of a prompt; missing scores are not counted."""

    passes: int
    samples: int


def journal_of(output: Path) -> Path:
    """Return the journal file from which an interrupted command resumes."""
    return output.with_name(f"{output.name}.progress.jsonl")


def columns_of(tally: Tally | None) -> dict[str, Any]:
    """Return the columns added to a record.

    >>> columns_of(Tally(2, 8))
    {'pass_rate': 0.25, 'pass_rate_low': 0.056, 'pass_rate_high': 0.5916, 'pass_samples': 8}
    >>> columns_of(None)
    {'pass_rate': None, 'pass_rate_low': None, 'pass_rate_high': None, 'pass_samples': 0}
    """
    if tally is None or not tally.samples:
        return dict(zip(COLUMNS, (None, None, None, 0), strict=True))
    low, high = beta_interval(*tally)
    values = (round(tally.passes / tally.samples, 6), round(low, 4), round(high, 4), tally.samples)
    return dict(zip(COLUMNS, values, strict=True))


def rewrite(inputs: Inputs, path: Path, tallies: Sequence[Tally | None]) -> None:
    """Write a copy of the records with the added columns; all other columns are unchanged."""
    with tqdm(desc="write", total=len(tallies), unit=" records", unit_scale=True) as bar:
        write = _rows if inputs.format == ".parquet" else _lines
        for written in write(inputs, path, tallies):
            bar.update(written)


def _lines(inputs: Inputs, path: Path, tallies: Sequence[Tally | None]) -> Iterator[int]:
    with open(path, "wb") as file:
        for record, tally in zip(inputs.records(), tallies, strict=True):
            file.write(_line(record, columns_of(tally)))
            yield 1


def _line(record: Record, added: dict[str, Any]) -> bytes:
    """Return a JSON line with the columns appended; existing values of these columns are replaced."""
    if any(name in record.values for name in added) or not record.values:
        return json.dumps({**record.values, **added}, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"
    text = whole_line(record.raw).rstrip()
    return text[:-1].rstrip() + b", " + json.dumps(added).encode()[1:] + b"\n"


def _rows(inputs: Inputs, path: Path, tallies: Sequence[Tally | None]) -> Iterator[int]:
    import pyarrow
    import pyarrow.parquet

    schema = common_schema(inputs)
    kinds = dict(zip(COLUMNS, (pyarrow.float64(),) * 3 + (pyarrow.int64(),), strict=True))
    for name in COLUMNS:
        if name in schema.names:
            schema = schema.remove(schema.get_field_index(name))
    whole, place = pyarrow.schema([*schema, *kinds.items()], metadata=schema.metadata), 0
    with pyarrow.parquet.ParquetWriter(path, whole) as file:
        for source in inputs.paths:
            for batch in pyarrow.parquet.ParquetFile(source).iter_batches(batch_size=8192):
                added = [columns_of(tally) for tally in tallies[place : place + len(batch)]]
                new = [pyarrow.array([one[name] for one in added], type=kind) for name, kind in kinds.items()]
                columns = [*(batch.column(name) for name in schema.names), *new]
                file.write_batch(pyarrow.record_batch(columns, schema=whole))
                place += len(batch)
                yield len(batch)
    inputs.check_unchanged()
