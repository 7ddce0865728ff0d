"""JSON lines left on disk: a row is parsed on access."""

from __future__ import annotations

import os
import weakref
import zlib
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gspo_lightning.corpus.lines import check_length, parse_line
from gspo_lightning.errors import UserError
from gspo_lightning.prompts.on_demand import OnDemand

__all__ = ["JsonLines"]

Row = dict[str, Any]
_BLOCK = 1 << 20


class JsonLines(OnDemand[Row]):
    """Rows of a JSON-lines file. Memory: 12 bytes a row, for its offset and a checksum.

    The file is kept open, so a run keeps its rows if the file is replaced or extended. Iterating reads the file
    from beginning to end and checks its rows.

    Args:
        path: an uncompressed file.

    Raises:
        OSError: the file cannot be opened.
        UserError: the file cannot be read.
    """

    def __init__(self, path: str) -> None:
        self._name = Path(path).name
        self._file = os.open(path, os.O_RDONLY)
        self._closing = weakref.finalize(self, os.close, self._file)
        self._begins, self._checksums = array("q"), array("I")
        place = 0
        for line in self._lines():
            if text := line.strip():
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
        there, end = 0, self._begins[-1]
        for number, line in enumerate(self._lines(), 1):
            if there >= end:  # lines added since the file was opened
                return
            there += len(line)
            if line.strip():
                yield parse_line(line, f"{self._name}:{number}")

    def at(self, place: int) -> Row:
        """Read and parse one row.

        Raises:
            UserError: the file was overwritten since it was opened.
        """
        begin, end = self._begins[place], self._begins[place + 1]
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
        place, rest, waiting = 0, list[bytes](), 0
        while block := self._read(_BLOCK, place):
            place += len(block)
            first, *more = block.split(b"\n")
            rest.append(first)
            waiting += len(first)
            check_length(waiting, self._name)
            if more:
                yield b"".join(rest) + b"\n"
                yield from (line + b"\n" for line in more[:-1])
                rest, waiting = more[-1:], len(more[-1])
        if waiting:
            yield b"".join(rest)

    def _read_all(self, end: int) -> bytes:
        return b"".join(self._read(min(_BLOCK, end - place), place) for place in range(0, end, _BLOCK))

    def _read(self, size: int, place: int) -> bytes:
        try:
            return os.pread(self._file, size, place)
        except OSError as error:
            raise UserError(self._name, f"cannot be read: {error.strerror or type(error).__name__}") from error
