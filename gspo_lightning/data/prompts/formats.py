"""Read files of records: JSON lines, JSON arrays, CSV, TSV and Parquet.

Messages name file and line and never show the content: records may be private.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from gspo_lightning.core.errors import UserError
from gspo_lightning.core.parsing import load_json
from gspo_lightning.data.corpus.files import suffix_of
from gspo_lightning.data.corpus.lines import no_json, no_text, numbered, parse_line
from gspo_lightning.data.prompts.on_demand import JsonLines, ParquetRows

Row = dict[str, Any]


def read_rows(path: str) -> Sequence[Row]:
    """Return every record of a file, in order. JSON lines and Parquet stay on disk and are checked when iterated over.

    Cells of CSV and TSV are texts and stay as they are (``042`` stays ``042``, an empty cell is an empty text); other
    formats keep their types.

    Raises:
        UserError: the file cannot be read or is malformed; names the line in formats that have lines.
    """
    read: Callable[[str], Sequence[Row]] = {
        ".jsonl": read_lines, ".json": _read_json, ".csv": _read_csv, ".tsv": _read_csv, ".parquet": ParquetRows,
    }[suffix_of(path)]  # fmt: skip
    name = Path(path).name
    try:
        return read(path)
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise UserError(name, "is not a whole gzip file", fix="copy it again, or unpack it") from error
    except OSError as error:
        raise UserError(name, f"cannot be read: {error.strerror or type(error).__name__}") from error


def place_of(rows: Sequence[Mapping[str, Any]], number: int, name: str) -> str:
    """Return the place of a row as messages name it: file and line for JSON lines, file and record for other files."""
    return f"{name}:{rows.line(number)}" if isinstance(rows, JsonLines) else f"{name}, record {number + 1}"


def open_file(path: str) -> IO[bytes]:
    """Open a file for reading, unpacked if its name ends in ``.gz``."""
    opened: Any = gzip.open if path.lower().endswith(".gz") else open
    file: IO[bytes] = opened(path, "rb")
    return file


def read_lines(path: str) -> Sequence[Row]:
    """Return every record of JSON lines; those of a compressed file are held in memory."""
    if not path.lower().endswith(".gz"):
        return JsonLines(path)
    name = Path(path).name
    with open_file(path) as file:
        return [parse_line(line, f"{name}:{number}") for number, line in numbered(file, name) if line.strip()]


def _read_json(path: str) -> list[Row]:
    name = Path(path).name
    with open_file(path) as file:
        content = file.read()
    try:
        rows = load_json(content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise no_text(f"{name}:{_line(content, error.start)}", error) from None
    except ValueError as error:
        line = f":{error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise no_json(name + line, error, "an array of objects; one object a line is .jsonl") from None
    if not isinstance(rows, list):
        raise UserError(name, f"is a JSON {type(rows).__name__}, not an array", fix="write [{...}, {...}]")
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            raise UserError(f"{name}, record {number}", f"is a JSON {type(row).__name__}, not an object")
    return rows


def _read_csv(path: str) -> list[Row]:
    import pyarrow
    import pyarrow.csv
    import pyarrow.lib

    with open_file(path) as file:
        content = file.read().removeprefix(b"\xef\xbb\xbf")
    if not content.strip():
        return []
    delimiter = "\t" if suffix_of(path) == ".tsv" else ","
    if content.count(b'"') % 2:
        _check_lines(path, content, delimiter)  # an unclosed quote would swallow the rest of the file
    names = _header(path, content, delimiter)
    try:
        table = pyarrow.csv.read_csv(
            io.BytesIO(content),
            parse_options=pyarrow.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
            convert_options=pyarrow.csv.ConvertOptions(
                column_types=dict.fromkeys(names, pyarrow.string()),
                strings_can_be_null=False,
                quoted_strings_can_be_null=False,
            ),
        )
    except pyarrow.lib.ArrowInvalid:  # its message quotes the line
        _check_lines(path, content, delimiter)
        raise UserError(Path(path).name, "is not a table that can be read") from None
    rows: list[Row] = table.to_pylist()
    return rows


def _header(path: str, content: bytes, delimiter: str) -> list[str]:
    try:
        text = io.TextIOWrapper(io.BytesIO(content), "utf-8", newline="")
        names = next(row for row in csv.reader(text, delimiter=delimiter) if row)
    except (UnicodeDecodeError, csv.Error):
        _check_lines(path, content, delimiter)
        raise UserError(f"{Path(path).name}:1", "has no names of columns that can be read") from None
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        where = f"{Path(path).name}:1"
        raise UserError(where, f"names {len(twice)} columns twice", fix="the first line holds a name for each column")
    return names


def _check_lines(path: str, content: bytes, delimiter: str) -> None:
    """Find the first malformed line and name it without its content."""
    name = Path(path).name
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise no_text(f"{name}:{_line(content, error.start)}", error) from None
    limit = csv.field_size_limit(len(content) + 1)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    columns = 0
    start = 1
    try:
        for row in reader:
            columns = columns or len(row)
            if row and len(row) != columns:
                raise UserError(
                    f"{name}:{start}",
                    f"has {len(row)} columns, the first line names {columns}",
                    fix="put texts that hold the separator or a line break in double quotes",
                )
            start = reader.line_num + 1
    except csv.Error:
        fix = 'double the quotes within a quoted text ("he said ""no""")'
        problem = "has a quote that is not closed, or text after a closing one"
        raise UserError(f"{name}:{start}", problem, fix=fix) from None
    finally:
        csv.field_size_limit(limit)


def _line(content: bytes, place: int) -> int:
    return content.count(b"\n", 0, place) + 1
