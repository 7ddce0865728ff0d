"""Read files of records for copying: JSON lines and Parquet, a record at a time, each with its place and id."""

from __future__ import annotations

import hashlib
import json
import math
import os
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

from gspo_lightning.core.errors import UserError, did_you_mean
from gspo_lightning.data.corpus.arrow import read_records
from gspo_lightning.data.corpus.lines import numbered, parse_line
from gspo_lightning.data.corpus.text import prompt_text

SUFFIXES = (".jsonl", ".json", ".csv", ".tsv", ".parquet")
"""Readable suffixes; all but Parquet may have ``.gz`` behind them."""
FORMATS = (".jsonl", ".parquet")
"""Suffixes of files that are copied record by record."""
LONGEST_PROMPT = 1_000_000
"""Most characters of a prompt. A longer text is a file in one line."""
_SHOWN_NAMES = 20


class Record(NamedTuple):
    """One record of a file."""

    file: int
    """Index of the file."""
    number: int
    """Line number, or place in a Parquet file, from 1."""
    raw: bytes
    """Original line with its end; empty for Parquet."""
    values: dict[str, Any]


def suffix_of(path: str) -> str:
    """Return the suffix that decides how a file is read; empty if it is unknown.

    >>> suffix_of("a/b.CSV.gz"), suffix_of("b.jsonl"), suffix_of("b.parquet.gz"), suffix_of("b.txt")
    ('.csv', '.jsonl', '', '')
    """
    name = Path(path).name.lower()
    packed = name.endswith(".gz")
    suffix = Path(name.removesuffix(".gz")).suffix
    return suffix if suffix in SUFFIXES and not (packed and suffix == ".parquet") else ""


def check_there(path: str, field: str) -> None:
    """Refuse a file of records that does not exist; the message names a near one of the same folder.

    Raises:
        UserError: no such file, or no name of a file at all.
    """
    if os.path.isfile(path):  # False also for a text that is too long for a path
        return
    folder, name = os.path.split(path)
    near = did_you_mean(name, [other for other in _listed(folder or ".") if suffix_of(other)])
    hint = f"; {near.partition('?')[0]}?" if near.startswith("did you mean") else ""
    raise UserError(field, f"the prompt file {name!r} does not exist{hint}", fix="give the whole path")


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def format_of(path: Path, option: str) -> str:
    """Return the format, ``.jsonl`` or ``.parquet``.

    Raises:
        UserError: another suffix.
    """
    if path.suffix.lower() in FORMATS:
        return path.suffix.lower()
    raise UserError(
        option, f"{path.name} is neither .jsonl nor .parquet", fix="gspo data convert reads .json, .csv, .tsv and .gz"
    )


class Inputs:
    """Several files read in sequence. Every pass reads the files again and checks that they are unchanged.

    Raises:
        UserError: a file is missing, given twice, or of another format than the others.
    """

    def __init__(self, paths: Sequence[Path], option: str = "--input") -> None:
        self.paths = list(paths)
        self.option = option
        for number, path in enumerate(self.paths):
            if not path.is_file():
                raise UserError(option, f"{path} {'is a folder' if path.is_dir() else 'does not exist'}")
            if any(path.samefile(other) for other in self.paths[:number]):
                raise UserError(option, f"{path} is given twice", fix="name each file once")
        formats = {format_of(path, option) for path in self.paths}
        if len(formats) > 1:
            raise UserError(option, "names JSON lines and Parquet together", fix="gspo data convert makes them alike")
        self.format = formats.pop()
        self.sha256 = [""] * len(self.paths)
        """Hash of each file, once it was read to its end."""
        self.numbers = array("q")
        """Line, or place in its file, of every record, once all were read."""
        self.ends: list[int] = []
        """Cumulative number of records up to and including each file."""

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def bytes(self) -> int:
        """Size of all files together."""
        return sum(path.stat().st_size for path in self.paths)

    @property
    def rows(self) -> int:
        """Number of rows of all Parquet files, from their metadata."""
        import pyarrow.parquet

        total = 0
        for path in self.paths:
            with _named(path):
                total += int(pyarrow.parquet.read_metadata(path).num_rows)
        return total

    def name(self, file: int, number: int) -> str:
        """Return the name of a record for messages.

        >>> Inputs([Path(__file__).with_name("files.py")])  # doctest: +IGNORE_EXCEPTION_DETAIL
        Traceback (most recent call last):
        UserError: --input: files.py is neither .jsonl nor .parquet
        """
        return _where(self.paths[file], number)

    def place(self, index: int) -> dict[str, Any]:
        """Return file and line of a record for output, by its number over all files from 0."""
        file = bisect_right(self.ends, index)
        word = "line" if self.format == ".jsonl" else "record"
        return {"file": self.paths[file].name, word: self.numbers[index]}

    def records(self, columns: Sequence[str] | None = None) -> Iterator[Record]:
        """Yield every record.

        Args:
            columns: for Parquet: read only these, if they exist.

        Raises:
            UserError: a malformed record, with file and line; a file without records, or one changed since it was read.
        """
        first = not self.ends
        for file, path in enumerate(self.paths):
            count = 0
            with _named(path):
                records = self._lines(file, path) if self.format == ".jsonl" else _rows(file, path, columns)
                for record in records:
                    count += 1
                    if first:
                        self.numbers.append(record.number)
                    yield record
            if not count:
                raise UserError(path.name, "holds no records")
            if first:
                self.ends.append((self.ends[-1] if self.ends else 0) + count)
        if self.format == ".parquet":
            self.check_unchanged()

    def check_unchanged(self) -> None:
        """Check that the files are unchanged; remember their hashes on the first call.

        Raises:
            UserError: a file was changed.
        """
        for file, path in enumerate(self.paths):
            self._check(file, path, sha256(path))

    def _lines(self, file: int, path: Path) -> Iterator[Record]:
        digest = hashlib.sha256()
        with path.open("rb") as lines:
            for number, line in numbered(lines, path.name):
                digest.update(line)
                if not line.isspace():
                    yield Record(file, number, line, parse_line(line, _where(path, number), strict=True))
        self._check(file, path, digest.hexdigest())

    def _check(self, file: int, path: Path, digest: str) -> None:
        if self.sha256[file] not in ("", digest):
            raise UserError(path.name, "was changed while it was read; nothing is written", fix="start again")
        self.sha256[file] = digest


def prompt_of(inputs: Inputs, record: Record, column: str, option: str = "--column NAME") -> str:
    """Return the text of a record's prompt.

    Raises:
        UserError: as :func:`checked_prompt`; names file and line.
    """
    return checked_prompt(record.values, column, lambda: inputs.name(record.file, record.number), option)


def checked_prompt(
    values: Mapping[str, Any], column: str, where: Callable[[], str], option: str = "--column NAME"
) -> str:
    """Return the text of the prompt in a column.

    Raises:
        UserError: the column is missing, or its prompt is empty, of another type or too long; begins with ``where()``.
    """
    repair = f"{option}, or repair the record"
    if column not in values:
        names = ", ".join(sorted(map(str, values))[:_SHOWN_NAMES]) or "nothing"
        near = did_you_mean(column, values).partition("?")[0]
        hint = f" ({near}?)" if near.startswith("did you mean") else ""
        raise UserError(
            where(),
            f"has no column {column!r}{hint}; it has {names}",
            fix=repair,
        )
    value = values[column]
    text = prompt_text(value)
    if text is None and value is not None and value != []:
        kind = type(value).__name__
        raise UserError(where(), f"its {column!r} is of type {kind}, not a text or a list of chat messages")
    if not text:
        raise UserError(where(), f"its {column!r} is empty", fix=repair)
    if len(text) > LONGEST_PROMPT:
        raise UserError(
            where(),
            f"its {column!r} has {len(text):,} characters, more than {LONGEST_PROMPT:,}",
            fix="is a line break missing? Leave the record out otherwise",
        )
    return text


def _rows(file: int, path: Path, columns: Sequence[str] | None) -> Iterator[Record]:
    import pyarrow.parquet

    table = pyarrow.parquet.ParquetFile(path)
    names = None if columns is None else [name for name in table.schema_arrow.names if name in columns]
    for number, values in enumerate(read_records(table, 1024, names), 1):
        yield Record(file, number, b"", values)


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Report read errors under the name of the file."""
    try:
        yield
    except UserError:
        raise
    except OSError as error:
        if type(error).__module__ == "builtins":
            raise UserError(path.name, f"cannot be read: {error.strerror or type(error).__name__}") from error
        raise UserError(path.name, "is not a Parquet file, or is damaged") from None
    except ValueError as error:
        if not type(error).__module__.startswith("pyarrow"):
            raise
        raise UserError(path.name, "is not a Parquet file, or is damaged") from None


def _where(path: Path, number: int) -> str:
    return f"{path.name}:{number}" if path.suffix.lower() == ".jsonl" else f"{path.name}, record {number}"


def sha256(path: Path) -> str:
    """Return the hexadecimal SHA-256 digest of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def as_json(values: dict[str, Any]) -> str:
    """Return a record as one line of JSON; other types become texts (dates), NaN and infinities become null.

    >>> as_json({"a": float("nan"), "b": [1.5, {"c": float("inf")}]})
    '{"a": null, "b": [1.5, {"c": null}]}'
    """
    try:
        return json.dumps(values, ensure_ascii=False, default=str, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(values), ensure_ascii=False, default=str)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class Identifiers:
    """Ids seen so far, about 100 bytes each; with a single file none are kept."""

    def __init__(self, inputs: Inputs) -> None:
        self._inputs = inputs
        self._seen: dict[bytes, tuple[int, int]] = {}

    def add(self, record: Record) -> None:
        """Add a record.

        Raises:
            UserError: another file has its id.
        """
        identifier = record.values.get("id")
        if len(self._inputs.paths) < 2 or identifier is None:
            return
        key = blake2b(repr(identifier).encode("utf-8", "replace"), digest_size=12).digest()
        file, number = self._seen.setdefault(key, (record.file, record.number))
        if file != record.file:
            raise UserError(
                self._inputs.name(record.file, record.number),
                f"has the id {str(identifier)[:80]!r}, which {self._inputs.name(file, number)} has, too",
                fix="give the records of each file ids of their own",
            )
