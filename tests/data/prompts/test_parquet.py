"""Parquet rows stay in their file: what is kept of them, and what a damaged one says."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gspo_lightning.core.errors import UserError
from gspo_lightning.data.prompts import on_demand
from gspo_lightning.data.prompts.formats import read_rows
from gspo_lightning.data.prompts.on_demand import ParquetRows
from tests.support.unreadable import unreadable


def written(file: Path, rows: int, group: int) -> str:
    table = pa.table(
        {"n": list(range(rows)), "text": [f"row {i} ü" for i in range(rows)], "deep": [{"a": [i]} for i in range(rows)]}
    )
    pq.write_table(table, file, row_group_size=group)
    return str(file)


def test_rows_are_the_same_from_the_beginning_and_one_by_one(tmp_path: Path) -> None:
    path = written(tmp_path / "p.parquet", 25, 10)
    rows = read_rows(path)
    assert isinstance(rows, ParquetRows)
    assert len(rows) == 25
    whole = pq.read_table(path).to_pylist()
    assert list(rows) == whole
    assert [rows[i] for i in (24, 0, 10, 9, -1)] == [whole[i] for i in (24, 0, 10, 9, 24)]
    assert rows[8:12] == whole[8:12]
    with pytest.raises(IndexError):
        rows[25]


def test_only_the_latest_row_groups_are_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_demand, "_KEPT_BYTES", 1000)
    rows = ParquetRows(written(tmp_path / "p.parquet", 1000, 10))
    for place in range(0, 1000, 7):
        assert rows[place]["n"] == place
    assert sum(table.nbytes for table in rows._decoded.values()) <= 1000
    assert len(rows._decoded) < 10
    monkeypatch.setattr(on_demand, "_KEPT_BYTES", 1)
    assert rows[3]["n"] == 3
    assert len(rows._decoded) == 1  # one is kept whatever its size


def test_damage_is_found_when_all_rows_are_read(tmp_path: Path) -> None:
    file = Path(written(tmp_path / "p.parquet", 5000, 1000))
    content = bytearray(file.read_bytes())
    middle = len(content) // 3
    content[middle : middle + 200] = b"\xff" * 200
    file.write_bytes(content)
    with pytest.raises(UserError, match=r"p.parquet: is not a Parquet file, or is damaged"):
        list(ParquetRows(str(file)))
    file.write_bytes(b"PAR1")
    with pytest.raises(UserError, match="is not a Parquet file, or is damaged"):
        ParquetRows(str(file))


def test_a_file_without_rows_has_none(tmp_path: Path) -> None:
    assert list(ParquetRows(written(tmp_path / "p.parquet", 0, 10))) == []


def test_a_file_that_may_not_be_read_is_not_called_damaged(tmp_path: Path) -> None:
    file = Path(written(tmp_path / "p.parquet", 10, 10))
    with unreadable(file), pytest.raises(UserError, match=r"p\.parquet: cannot be read: Permission denied"):
        ParquetRows(str(file))
