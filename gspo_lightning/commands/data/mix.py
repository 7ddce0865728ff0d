"""``gspo data mix``: interleave several files by weights, using each record at most once."""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from gspo_lightning.commands.data.terminal import add_files, reading, show
from gspo_lightning.core.errors import UserError
from gspo_lightning.core.escape import say
from gspo_lightning.data.corpus.decontamination_report import inherited, report_file
from gspo_lightning.data.corpus.files import Identifiers, Inputs
from gspo_lightning.data.corpus.output import Outputs, common_schema, same_format, whole_line

DESCRIPTION = "One file of several, interleaved by weights; records keep the order of their file, and none comes twice."
_ROWS = 8192


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb."""
    add_files(parser)
    parser.add_argument("--weights", nargs="+", type=float, metavar="W", help="one for each file (default: alike)")
    parser.add_argument("--size", type=int, metavar="N", help="records (default: as many as the weights allow)")


def run(options: argparse.Namespace) -> None:
    """Mix the input files.

    Raises:
        UserError: an option or a record is wrong, or a file has too few records.
    """
    inputs = Inputs(options.input)
    same_format(inputs, [options.output])
    weights = options.weights or [1.0] * len(inputs.paths)
    if len(weights) != len(inputs.paths):
        raise UserError("--weights", f"has {len(weights)} numbers for {len(inputs.paths)} files")
    if not all(0 < weight < float("inf") for weight in weights):
        raise UserError("--weights", "must all be finite and above 0", fix="leave a file out instead")
    exponent = math.frexp(max(weights))[1]  # only ratios matter, and the sum of very large weights would be infinite
    weights = [math.ldexp(weight, -exponent) for weight in weights]
    report = inherited(inputs.paths)
    targets = [report_file(options.output), options.output] if report else [options.output]
    with Outputs(targets, inputs.paths) as outputs:
        identifiers = Identifiers(inputs)
        with reading(inputs, "read") as step:
            for record in inputs.records(["id"]):
                identifiers.add(record)
                step(record)
        counts = [end - begin for begin, end in zip([0, *inputs.ends], inputs.ends, strict=False)]
        size = size_of(counts, weights) if options.size is None else options.size
        quotas = _quotas(size, weights)
        for path, count, quota in zip(inputs.paths, counts, quotas, strict=True):
            if quota > count or size < 1:
                largest = size_of(counts, weights)
                problem = f"is {size:,}, but {path.name} has {count:,} records and would give {quota:,}"
                raise UserError("--size", problem, fix=f"at most {largest:,} with these weights")
        with tqdm(desc="write", total=size, unit=" records", unit_scale=True) as bar:
            write = _write_rows if inputs.format == ".parquet" else _write_lines
            for written in write(inputs, outputs.path(options.output), order(quotas)):
                bar.update(written)
        outputs.write_report(report, options.output)
    rows = {}
    for path, count, quota in zip(inputs.paths, counts, quotas, strict=True):
        rows[f"{path.name}, of {count:,}"] = quota
    show("gspo data mix", {**rows, "written": size}, size)
    say(f"written: {options.output}")


def size_of(counts: Sequence[int], weights: Sequence[float]) -> int:
    """Return the largest mixture possible from files with these record counts.

    >>> size_of([100, 10], [3, 1]), size_of([30, 10], [3, 1])
    (42, 40)
    """
    total = sum(weights)
    size = int(min(count * total / weight for count, weight in zip(counts, weights, strict=True) if weight))
    while all(q <= count for q, count in zip(_quotas(size + 1, weights), counts, strict=True)):
        size += 1
    while any(q > count for q, count in zip(_quotas(size, weights), counts, strict=True)):
        size -= 1
    return size


def _quotas(size: int, weights: Sequence[float]) -> list[int]:
    """Apportion ``size`` records by weights with the largest-remainder method; ties go to the first file.

    >>> _quotas(10, [3, 1]), _quotas(4, [1, 1, 1])
    ([8, 2], [2, 1, 1])
    """
    exact = [size * weight / sum(weights) for weight in weights]
    quotas = [int(share) for share in exact]
    by_remainder = sorted(range(len(exact)), key=lambda i: (quotas[i] - exact[i], i))  # the largest first
    for i in by_remainder[: size - sum(quotas)]:
        quotas[i] += 1
    return quotas


def order(quotas: Sequence[int]) -> Iterator[int]:
    """Yield the file of each next record, so that every prefix has the same mixture as the whole.

    >>> list(order([3, 1]))
    [0, 0, 1, 0]
    """
    size = sum(quotas)
    counts = [0] * len(quotas)
    for place in range(1, size + 1):
        # the file that is furthest behind its share of the records so far, of those that have any left
        behind = [quota * place / size - count for quota, count in zip(quotas, counts, strict=True)]
        chosen = max(range(len(quotas)), key=lambda i: (counts[i] < quotas[i], behind[i], -i))
        counts[chosen] += 1
        yield chosen


def _write_lines(inputs: Inputs, path: Path, files: Iterator[int]) -> Iterator[int]:
    streams = [Inputs([path]).records() for path in inputs.paths]
    with open(path, "wb") as target:
        for file in files:
            target.write(whole_line(next(streams[file]).raw))
            yield 1
    inputs.check_unchanged()


def _write_rows(inputs: Inputs, path: Path, files: Iterator[int]) -> Iterator[int]:
    import pyarrow
    import pyarrow.parquet

    def rows(file: int) -> Iterator[Any]:
        for batch in pyarrow.parquet.ParquetFile(inputs.paths[file]).iter_batches(batch_size=_ROWS):
            for i in range(len(batch)):
                yield batch.slice(i, 1)

    schema = common_schema(inputs)
    streams = [rows(file) for file in range(len(inputs.paths))]
    with pyarrow.parquet.ParquetWriter(path, schema) as target:
        while batch := [next(streams[file]) for file in itertools.islice(files, _ROWS)]:
            target.write_table(pyarrow.Table.from_batches(batch, schema=schema).combine_chunks())
            yield len(batch)
    inputs.check_unchanged()
