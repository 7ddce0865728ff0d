"""Records of Arrow tables and Parquet files, as they were written before they became a table.

A table gives every object the fields of all objects of its column, cannot mix types, and has types that JSON lacks.
Here a null field of an object is absent, JSON text of the type ``arrow.json`` is the value that it encodes, dates,
times, durations, UUIDs and decimals are the texts and numbers that JSON lines hold, and a float of 32 or 16 bits is
the shortest decimal that means it: 0.1, not 0.10000000149011612.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

from gspo_lightning.core.parsing import load_json

if TYPE_CHECKING:
    import pyarrow

Row = dict[str, Any]
_JSON = "arrow.json"
_INDEX = re.compile(r"__index_level_\d+__")
"""Name that pandas gives a column for an index without a name."""


def records_of(batch: pyarrow.RecordBatch | pyarrow.Table) -> list[Row]:
    """Return the rows of a batch or table as records.

    Dates and times become ISO texts, decimals integers or texts, maps objects; pandas' unnamed index is left out. A
    column that is null in a row stays there as None.

    >>> import pyarrow
    >>> call = [{"city": "Rome"}, {"lat": 41.9, "on": datetime.date(2024, 1, 5)}]
    >>> [row["call"] for row in records_of(pyarrow.table({"call": call}))]
    [{'city': 'Rome'}, {'lat': 41.9, 'on': '2024-01-05'}]
    """
    kinds = {field.name: field.type for field in batch.schema if not _INDEX.fullmatch(field.name)}
    rows: list[Row] = batch.select(list(kinds)).to_pylist()
    changed = {name: kind for name, kind in kinds.items() if not _is_plain(kind)}
    if changed:
        for row in rows:
            for name, kind in changed.items():
                row[name] = _written(row[name], kind)
    return rows


def read_records(file: pyarrow.parquet.ParquetFile, rows: int, columns: list[str] | None = None) -> Iterator[Row]:
    """Yield every row of a Parquet file, ``rows`` at a time in memory.

    Args:
        file: open.
        rows: rows turned into Python objects at a time.
        columns: names of those to read; None reads all.
    """
    for batch in file.iter_batches(batch_size=rows, columns=columns):
        yield from records_of(batch)


def without_padding(value: Any) -> Any:
    """Return a decoded row of ``datasets`` as it was written: null fields of its objects are absent."""
    if isinstance(value, Mapping):
        return {name: without_padding(part) for name, part in value.items() if part is not None}
    return [without_padding(part) for part in value] if isinstance(value, list) else _scalar(value)


def _is_plain(kind: pyarrow.DataType) -> bool:
    """True if Python's values of a type are those of JSON."""
    from pyarrow import types

    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return _is_plain(kind.value_type)
    if types.is_dictionary(kind):
        return _is_plain(kind.value_type)
    simple = (types.is_null, types.is_boolean, types.is_integer, types.is_float64, types.is_string)
    return any(test(kind) for test in (*simple, types.is_large_string, types.is_binary, types.is_large_binary))


def _written(value: Any, kind: pyarrow.DataType) -> Any:
    from pyarrow import types

    if value is None:
        return None
    if getattr(kind, "extension_name", "") == _JSON:
        return load_json(value)
    if types.is_struct(kind):
        parts = ((field.name, _written(value[field.name], field.type)) for field in kind)
        return {name: part for name, part in parts if part is not None}
    if types.is_floating(kind):
        return shortest(value, kind.bit_width)
    if types.is_dictionary(kind):
        return _written(value, kind.value_type)
    if types.is_map(kind):
        return {key if isinstance(key, str) else str(key): _written(item, kind.item_type) for key, item in value}
    if isinstance(value, list):
        return [_written(part, kind.value_type) for part in value]
    return _scalar(value)


def shortest(value: float, bits: int) -> float:
    """Return the float of 64 bits with the fewest decimal digits that a float of fewer bits means.

    >>> shortest(0.10000000149011612, 32), shortest(0.0999755859375, 16), shortest(0.1, 64)
    (0.1, 0.1, 0.1)
    """
    import numpy as np

    narrow = {16: np.float16, 32: np.float32}.get(bits)
    return value if narrow is None else float(str(narrow(value)))


def _scalar(value: Any) -> Any:
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() and value.as_tuple().exponent == 0 else str(value)
    if isinstance(value, datetime.timedelta | UUID):
        return str(value)
    return value.isoformat() if isinstance(value, datetime.date | datetime.time) else value
