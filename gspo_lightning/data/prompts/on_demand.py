"""Sequences whose elements are made on access: rows of JSON lines and Parquet stay on disk, their index in memory."""

from __future__ import annotations

import os
import weakref
import zlib
from abc import abstractmethod
from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeVar, overload

from gspo_lightning.core.errors import UserError
from gspo_lightning.data.corpus.arrow import read_records, records_of
from gspo_lightning.data.corpus.lines import check_length, parse_line

T = TypeVar("T")
Row = dict[str, Any]
_BLOCK = 1 << 20
_AT_A_TIME = 4096
"""Rows turned into Python objects at a time when a file is read from beginning to end."""
_KEPT_BYTES = 256 << 20
"""Bytes of decoded row groups to keep, latest first; a larger group is kept alone."""


class OnDemand(Sequence[T]):
    """A sequence that makes its elements on access, always the same ones; a slice is a list."""

    @abstractmethod
    def at(self, place: int) -> T:
        """Return the element at a place from 0 to the length less one."""

    @overload
    def __getitem__(self, place: int) -> T: ...

    @overload
    def __getitem__(self, place: slice) -> list[T]: ...

    def __getitem__(self, place: int | slice) -> T | list[T]:
        """Index as a list does."""
        places = range(len(self))[place]  # an index out of range is refused here
        return self.at(places) if isinstance(places, int) else [self.at(i) for i in places]


@dataclass(frozen=True)
class Placed(OnDemand[T]):
    """Elements with their places in a file.

    Args:
        pairs: in the order of their file.
        where: element number, from 0 -> its file and line, as messages name it.
    """

    pairs: Sequence[T]
    where: Callable[[int], str]

    def __len__(self) -> int:
        return len(self.pairs)

    def at(self, place: int) -> T:
        """Return the element at a place."""
        return self.pairs[place]


def place_of(records: Iterable[Any], number: int) -> str:
    """Return the name that messages use for a record, counted from 0: file and line if ``records`` know them.

    >>> place_of(["a", "b"], 1)
    'record 2'
    """
    place = getattr(records, "place", None)
    return f"record {number + 1}" if place is None else str(place(number))


class JsonLines(OnDemand[Row]):
    """Rows of a JSON-lines file. Memory: 12 bytes a row, for its offset and a checksum.

    The file is kept open, so a run keeps its rows if the file is replaced or extended. Iterating reads the file
    from beginning to end and checks its rows.

    Raises:
        OSError: the file cannot be opened.
        UserError: the file cannot be read.
    """

    def __init__(self, path: str) -> None:
        self._name = Path(path).name
        self._file = os.open(path, os.O_RDONLY)
        self._closing = weakref.finalize(self, os.close, self._file)
        self._begins = array("q")
        self._checksums = array("I")
        place = 0
        for line in self._lines():
            text = line.strip()
            if text:
                self._begins.append(place)
                self._checksums.append(zlib.crc32(text))
            place += len(line)
        self._begins.append(place)

    def __len__(self) -> int:
        return len(self._checksums)

    def __iter__(self) -> Iterator[Row]:
        """Yield every row, in order.

        Raises:
            UserError: a malformed line, with its number.
        """
        place = 0
        end = self._begins[-1]
        for number, line in enumerate(self._lines(), 1):
            if place >= end:  # lines added since the file was opened
                return
            place += len(line)
            if line.strip():
                yield parse_line(line, f"{self._name}:{number}")

    def at(self, place: int) -> Row:
        """Read and parse one row.

        Raises:
            UserError: the file was overwritten since it was opened.
        """
        begin = self._begins[place]
        end = self._begins[place + 1]
        text = self._read(end - begin, begin).strip()
        if zlib.crc32(text) != self._checksums[place]:
            problem = f"record {place + 1} has changed since this run began: the file was overwritten"
            raise UserError(self._name, problem, fix="write other records to a new file, and start again")
        return parse_line(text, f"{self._name}, record {place + 1}")

    def line(self, place: int) -> int:
        """Return the line number of a row, from 1. Reads everything before it: for messages only."""
        return 1 + self._read_all(self._begins[place]).count(b"\n")

    def _lines(self) -> Iterator[bytes]:
        """Yield every line with its end; several readers may do so at the same time."""
        place = 0
        rest: list[bytes] = []  # pieces of a line whose end is in a later block
        waiting = 0  # bytes of them
        while block := self._read(_BLOCK, place):
            place += len(block)
            first, *more = block.split(b"\n")
            rest.append(first)
            waiting += len(first)
            check_length(waiting, self._name)
            if more:
                yield b"".join(rest) + b"\n"
                yield from (line + b"\n" for line in more[:-1])
                rest = more[-1:]
                waiting = len(more[-1])
        if waiting:
            yield b"".join(rest)

    def _read_all(self, end: int) -> bytes:
        return b"".join(self._read(min(_BLOCK, end - place), place) for place in range(0, end, _BLOCK))

    def _read(self, size: int, place: int) -> bytes:
        try:
            return os.pread(self._file, size, place)
        except OSError as error:
            raise UserError(self._name, f"cannot be read: {error.strerror or type(error).__name__}") from error


class ParquetRows(OnDemand[Row]):
    """Rows of a Parquet file. Memory: the row groups accessed last, in Arrow's format.

    Raises:
        UserError: not a Parquet file.
    """

    def __init__(self, path: str) -> None:
        import pyarrow.parquet

        self._name = Path(path).name
        with self._readable():
            self._file = pyarrow.parquet.ParquetFile(path)
            counts = [self._file.metadata.row_group(i).num_rows for i in range(self._file.metadata.num_row_groups)]
        self._ends = list(accumulate(counts))
        self._decoded: OrderedDict[int, Any] = OrderedDict()

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __iter__(self) -> Iterator[Row]:
        """Yield every row, in order."""
        with self._readable():
            yield from read_records(self._file, _AT_A_TIME)

    def at(self, place: int) -> Row:
        """Return one row from its row group.

        Raises:
            UserError: the file is damaged.
        """
        group = bisect_right(self._ends, place)
        inside = place - (self._ends[group - 1] if group else 0)
        with self._readable():
            (row,) = records_of(self._group(group).slice(inside, 1))
        return row

    def _group(self, number: int) -> Any:
        if number not in self._decoded:
            self._decoded[number] = self._file.read_row_group(number)
        self._decoded.move_to_end(number)
        while len(self._decoded) > 1 and sum(table.nbytes for table in self._decoded.values()) > _KEPT_BYTES:
            self._decoded.popitem(last=False)
        return self._decoded[number]

    def _readable(self) -> _Readable:
        return _Readable(self._name)


class _Readable:
    """Context that turns read errors into one message without file content."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        import pyarrow.lib

        if isinstance(error, PermissionError):
            raise UserError(self._name, "cannot be read: Permission denied") from None
        if isinstance(error, pyarrow.lib.ArrowException | OSError | UnicodeDecodeError):
            raise UserError(self._name, "is not a Parquet file, or is damaged") from None
