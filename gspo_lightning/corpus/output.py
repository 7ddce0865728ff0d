"""Copies of records: unchanged, in their order, in files that appear whole together, or not at all."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import numpy as np

from gspo_lightning.corpus.certificate import Certificate, certificate_file
from gspo_lightning.corpus.files import Inputs, Record, as_json, format_of, sha256
from gspo_lightning.errors import UserError
from gspo_lightning.unfinished import beside, sweep

__all__ = ["Outputs", "common_schema", "copy", "dropped_file", "same_format", "whole_line"]


def dropped_file(output: Path) -> Path:
    """Where the dropped records of an output lie."""
    return output.with_name(f"{output.name}.dropped.jsonl")


class Outputs:
    """Files that are swapped in together when the work is done; what is there already is never replaced.

    Use as a context: an exception leaves nothing behind.

    Args:
        targets: the files.
        inputs: none of these may be one of them.

    Raises:
        UserError: a folder is missing, a file is there, or is an input.
    """

    def __init__(self, targets: Sequence[Path], inputs: Sequence[Path]) -> None:
        self._targets = list(targets)
        for target in targets:
            if not target.parent.is_dir():
                raise UserError("--output", f"the folder {target.parent} does not exist", fix="make it first")
            if any(target.exists() and target.samefile(one) for one in inputs if one.exists()):
                raise UserError("--output", f"{target} is an input", fix="name another file; nothing is overwritten")
            if target.exists() or target.is_symlink():
                raise UserError("--output", f"{target} exists", fix="name another file; nothing is overwritten")
        places = [target.parent.resolve() / target.name for target in targets]  # one file may be spelled in many ways
        if repeated := [t for i, t in enumerate(self._targets) if places[i] in places[:i]]:
            raise UserError("--output", f"{repeated[0]} is named twice", fix="name different files")
        self.scratch = beside(targets[0].with_name(f"{targets[0].name}.scratch"))
        """A folder for what is needed meanwhile."""

    def __enter__(self) -> Outputs:
        for target in self._targets:
            sweep(target.parent, target.name)
        self.scratch.mkdir()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                for target in self._targets:
                    _swap_in(target)
        finally:
            shutil.rmtree(self.scratch, ignore_errors=True)
            for target in self._targets:
                with contextlib.suppress(OSError):
                    beside(target).unlink(missing_ok=True)

    def path(self, target: Path) -> Path:
        """Where a target is written."""
        return beside(target)

    def write_json(self, target: Path, value: Mapping[str, Any]) -> None:
        """A small file."""
        with open(self.path(target), "w", encoding="utf-8") as file:
            json.dump(value, file, indent=2, ensure_ascii=False)
            file.write("\n")

    def write_certificate(self, certificate: Certificate | None, output: Path) -> None:
        """Beside an output, which is written already; nothing where there is no certificate."""
        if certificate is not None:
            signed = replace(certificate, sha256=sha256(self.path(output)))
            self.write_json(certificate_file(output), signed.as_json())


def _swap_in(target: Path) -> None:
    unfinished = beside(target)
    descriptor = os.open(unfinished, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    try:
        os.link(unfinished, target)  # fails where somebody made the file meanwhile
    except FileExistsError:
        raise UserError("--output", f"{target} was made meanwhile", fix="name another file") from None
    except OSError:  # a file system without hard links
        os.rename(unfinished, target)


def copy(
    inputs: Inputs,
    outputs: Outputs,
    targets: Sequence[Path],
    route: Callable[[int], int],
    dropped: Path | None = None,
    why: Callable[[int], Mapping[str, Any]] | None = None,
    progress: Callable[[int], object] = lambda count: None,
) -> None:
    """Copy each record to a target, or to the file of what was dropped.

    Args:
        inputs: read once more.
        outputs: swap the files in.
        targets: of the inputs' format.
        route: number of a record over all inputs, from 0 -> the place of its target, or -1.
        dropped: JSON lines of what was dropped.
        why: what is said about a dropped record.
        progress: is told the number of records since it was told last.
    """
    with contextlib.ExitStack() as stack:
        rest: IO[bytes] | None = None
        if dropped is not None:
            rest = stack.enter_context(open(outputs.path(dropped), "wb"))

        def drop(index: int, record: Record) -> None:
            if rest is not None:
                rest.write(_dropped_line(inputs, index, record, why(index) if why is not None else {}))

        paths = [outputs.path(target) for target in targets]
        if inputs.format == ".parquet":
            _copy_batches(inputs, paths, route, drop, progress)
            return
        files = [stack.enter_context(open(path, "wb")) for path in paths]
        for index, record in enumerate(inputs.records()):
            progress(1)
            if (to := route(index)) >= 0:
                files[to].write(whole_line(record.raw))
            else:
                drop(index, record)


def whole_line(raw: bytes) -> bytes:
    """A line with its end, which the last one of a file may lack, and without a byte-order mark before it."""
    line = raw.removeprefix(b"\xef\xbb\xbf")
    return line if line.endswith(b"\n") else line + b"\n"


def common_schema(inputs: Inputs) -> Any:
    """The schema of Parquet inputs.

    Raises:
        UserError: they differ.
    """
    import pyarrow.parquet

    schemas = [pyarrow.parquet.read_schema(path) for path in inputs.paths]
    for path, schema in zip(inputs.paths, schemas, strict=True):
        if schema != schemas[0]:
            said = f"{path.name} has other columns or types than {inputs.paths[0].name}"
            raise UserError(inputs.option, said, fix="gspo data convert makes them alike")
    return schemas[0]


def _copy_batches(
    inputs: Inputs,
    paths: Sequence[Path],
    route: Callable[[int], int],
    drop: Callable[[int, Record], None],
    progress: Callable[[int], object],
) -> None:
    """Rows as Arrow has them: no value passes through Python."""
    import pyarrow
    import pyarrow.parquet

    schema, index = common_schema(inputs), 0
    with contextlib.ExitStack() as stack:
        writers = [stack.enter_context(pyarrow.parquet.ParquetWriter(path, schema)) for path in paths]
        for file, path in enumerate(inputs.paths):
            number = 0
            for batch in pyarrow.parquet.ParquetFile(path).iter_batches(batch_size=8192):
                to = np.array([route(index + i) for i in range(len(batch))])
                for target, writer in enumerate(writers):
                    if (to == target).any():
                        writer.write_batch(batch.filter(pyarrow.array(to == target)))
                for i in np.flatnonzero(to < 0).tolist():
                    drop(index + i, Record(file, number + i + 1, b"", batch.slice(i, 1).to_pylist()[0]))
                index, number = index + len(batch), number + len(batch)
                progress(len(batch))
    inputs.check_unchanged()


def _dropped_line(inputs: Inputs, index: int, record: Record, why: Mapping[str, Any]) -> bytes:
    """Where the record was and why it was dropped; the record itself stands at the end as it was."""
    identifier = {"id": record.values["id"]} if "id" in record.values else {}
    head = json.dumps({**identifier, **inputs.place(index), **why}, ensure_ascii=False, default=str)
    raw = record.raw.strip().removeprefix(b"\xef\xbb\xbf")
    body = raw or as_json(record.values).encode("utf-8", "backslashreplace")
    return head[:-1].encode("utf-8", "backslashreplace") + b', "record": ' + body + b"}\n"


def same_format(inputs: Inputs, outputs: Sequence[Path]) -> None:
    """Outputs have the inputs' format.

    Raises:
        UserError: one has another.
    """
    for output in outputs:
        if format_of(output, "--output") != inputs.format:
            raise UserError(
                "--output", f"{output.name} is not {inputs.format}", fix="gspo data convert changes formats"
            )
