"""Parquet rows left on disk: a row group is decoded on access."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

from gspo_lightning.errors import UserError
from gspo_lightning.prompts.on_demand import OnDemand

__all__ = ["ParquetRows"]

Row = dict[str, Any]
_AT_A_TIME = 4096
"""Rows turned into Python objects at a time when a file is read from beginning to end."""
_KEPT_BYTES = 256 << 20
"""Bytes of decoded row groups to keep, latest first; a larger group is kept alone."""


class ParquetRows(OnDemand[Row]):
    """Rows of a Parquet file. Memory: the row groups accessed last, in Arrow's format.

    Args:
        path: the file, which is kept open.

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
            for batch in self._file.iter_batches(batch_size=_AT_A_TIME):
                yield from batch.to_pylist()

    def at(self, place: int) -> Row:
        """Return one row from its row group.

        Raises:
            UserError: the file is damaged.
        """
        group = bisect_right(self._ends, place)
        inside = place - (self._ends[group - 1] if group else 0)
        with self._readable():
            row: Row = self._group(group).slice(inside, 1).to_pylist()[0]
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
