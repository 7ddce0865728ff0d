"""Copy records unchanged and in order, to files that all appear complete, or not at all."""

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

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.temp_files import sweep, temp_path
from gspo_lightning.data.corpus.arrow import records_of
from gspo_lightning.data.corpus.decontamination_report import DecontaminationReport, report_file
from gspo_lightning.data.corpus.files import Inputs, Record, as_json, format_of, sha256


def dropped_file(output: Path) -> Path:
    """Return the path for the dropped records of an output."""
    return output.with_name(f"{output.name}.dropped.jsonl")


class Outputs:
    """Output files put in place together when all are written; existing files are never replaced.

    Use as a context: an exception leaves nothing behind.

    Raises:
        UserError: a folder is missing, a file exists already, or is an input.
    """

    def __init__(self, targets: Sequence[Path], inputs: Sequence[Path]) -> None:
        self._targets = list(targets)
        for target in targets:
            if not target.parent.is_dir():
                raise UserError("--output", f"the folder {target.parent} does not exist", fix="make it first")
            if any(target.exists() and target.samefile(source) for source in inputs if source.exists()):
                raise UserError("--output", f"{target} is an input", fix="name another file; nothing is overwritten")
            if target.exists() or target.is_symlink():
                raise UserError("--output", f"{target} exists", fix="name another file; nothing is overwritten")
        places = [target.parent.resolve() / target.name for target in targets]  # one file may have many spellings
        for number, target in enumerate(self._targets):
            if places[number] in places[:number]:
                raise UserError("--output", f"{target} is named twice", fix="name different files")
        self.scratch = temp_path(targets[0].with_name(f"{targets[0].name}.scratch"))
        """Folder for temporary files."""

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
                    temp_path(target).unlink(missing_ok=True)

    def path(self, target: Path) -> Path:
        """Return the temporary path of a target."""
        return temp_path(target)

    def write_json(self, target: Path, value: Mapping[str, Any]) -> None:
        """Write a small JSON file."""
        with open(self.path(target), "w", encoding="utf-8") as file:
            json.dump(value, file, indent=2, ensure_ascii=False)
            file.write("\n")

    def write_report(self, report: DecontaminationReport | None, output: Path) -> None:
        """Write a decontamination report beside an output, which is written already; do nothing without one."""
        if report is not None:
            signed = replace(report, sha256=sha256(self.path(output)))
            self.write_json(report_file(output), signed.as_json())


def _swap_in(target: Path) -> None:
    unfinished = temp_path(target)
    descriptor = os.open(unfinished, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    try:
        os.link(unfinished, target)  # fails if the file was created meanwhile
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
    """Copy each record to a target, or to the file of dropped records.

    Args:
        inputs: read once more.
        outputs: context that puts the files in place.
        targets: of the inputs' format.
        route: number of a record over all inputs, from 0 -> index of its target, or -1 to drop it.
        dropped: path of the JSON lines of dropped records.
        why: number of a dropped record -> reason, as columns.
        progress: called with the number of records since the last call.
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
            target = route(index)
            if target >= 0:
                files[target].write(whole_line(record.raw))
            else:
                drop(index, record)


def whole_line(raw: bytes) -> bytes:
    """Return a line with its end, which the last line of a file may lack, and without a byte-order mark."""
    line = raw.removeprefix(b"\xef\xbb\xbf")
    return line if line.endswith(b"\n") else line + b"\n"


def common_schema(inputs: Inputs) -> Any:
    """Return the common schema of Parquet inputs.

    Raises:
        UserError: the schemas differ.
    """
    import pyarrow.parquet

    schemas = [pyarrow.parquet.read_schema(path) for path in inputs.paths]
    for path, schema in zip(inputs.paths, schemas, strict=True):
        if schema != schemas[0]:
            raise UserError(
                inputs.option,
                f"{path.name} has other columns or types than {inputs.paths[0].name}",
                fix="gspo data convert makes them alike",
            )
    return schemas[0]


def _copy_batches(
    inputs: Inputs,
    paths: Sequence[Path],
    route: Callable[[int], int],
    drop: Callable[[int, Record], None],
    progress: Callable[[int], object],
) -> None:
    """Copy rows as Arrow batches: only dropped rows pass through Python."""
    import pyarrow
    import pyarrow.parquet

    schema = common_schema(inputs)
    index = 0
    with contextlib.ExitStack() as stack:
        writers = [stack.enter_context(pyarrow.parquet.ParquetWriter(path, schema)) for path in paths]
        for file, path in enumerate(inputs.paths):
            number = 0
            for batch in pyarrow.parquet.ParquetFile(path).iter_batches(batch_size=8192):
                targets = np.array([route(index + i) for i in range(len(batch))])
                for target, writer in enumerate(writers):
                    if (targets == target).any():
                        writer.write_batch(batch.filter(pyarrow.array(targets == target)))
                for i in np.flatnonzero(targets < 0).tolist():
                    [values] = records_of(batch.slice(i, 1))
                    drop(index + i, Record(file, number + i + 1, b"", values))
                index = index + len(batch)
                number = number + len(batch)
                progress(len(batch))
    inputs.check_unchanged()


def _dropped_line(inputs: Inputs, index: int, record: Record, why: Mapping[str, Any]) -> bytes:
    """Return place and reason of a dropped record as JSON, with the unchanged record at the end."""
    identifier = {"id": record.values["id"]} if "id" in record.values else {}
    head = json.dumps({**identifier, **inputs.place(index), **why}, ensure_ascii=False, default=str)
    raw = record.raw.strip().removeprefix(b"\xef\xbb\xbf")
    body = raw or as_json(record.values).encode("utf-8", "backslashreplace")
    return head[:-1].encode("utf-8", "backslashreplace") + b', "record": ' + body + b"}\n"


def same_format(inputs: Inputs, outputs: Sequence[Path]) -> None:
    """Refuse outputs of another format than the inputs.

    Raises:
        UserError: an output has another format.
    """
    for output in outputs:
        if format_of(output, "--output") != inputs.format:
            raise UserError(
                "--output", f"{output.name} is not {inputs.format}", fix="gspo data convert changes formats"
            )
