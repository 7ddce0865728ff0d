"""Parquet rows stay in their file: what is kept of them, and what a damaged one says."""

from __future__ import annotations

import json
from pathlib import Path

import pandas
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gspo_lightning.cli import main
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


def test_floats_of_fewer_bits_are_the_decimals_that_they_mean(tmp_path: Path) -> None:
    half = pa.array([0.1, None], pa.float16())
    table = {
        "prompt": ["a", "b"],
        "answer": pa.array([0.1, 42.0], pa.float32()),
        "rates": pa.array([[0.3, 1 / 3], []], pa.list_(pa.float32())),
        "about": pa.array([{"half": 0.7}, {}], pa.struct({"half": pa.float32()})),
        "half": half,
        "named": pa.array([0.6, 0.2], pa.float32()).dictionary_encode(),
        "wide": [1 / 3, 0.1],
    }
    pq.write_table(pa.table(table), tmp_path / "p.parquet")
    output = tmp_path / "p.jsonl"
    assert main(["data", "convert", "--input", str(tmp_path / "p.parquet"), "--output", str(output)]) == 0
    first, second = map(json.loads, output.read_text().splitlines())
    assert first == {
        "prompt": "a", "answer": 0.1, "rates": [0.3, 0.33333334], "about": {"half": 0.7}, "half": 0.1, "named": 0.6,
        "wide": 1 / 3,
    }  # fmt: skip
    assert second["answer"] == 42.0
    assert second["half"] is None


def test_an_integer_beside_an_empty_cell_is_still_exactly_that_integer(tmp_path: Path) -> None:
    frame = pandas.DataFrame({"prompt": ["6*7=", "?"], "answer": [42, None]})  # pandas makes a column of floats
    frame.to_parquet(tmp_path / "p.parquet")
    records = read_rows(str(tmp_path / "p.parquet"))
    lines = tmp_path / "said.jsonl"
    said = {"#42": 1.0, "#42.0": 1.0, "#4": 0.0, "#42.5": 0.0}
    with lines.open("w") as file:
        for number, completion in enumerate(said):
            file.write(json.dumps({"id": number, "completion": completion, **records[0]}) + "\n")
    scored = tmp_path / "scored.jsonl"
    assert main(["score", "--reward", "ExactMatch", "--input", str(lines), "--output", str(scored)]) == 0
    assert [json.loads(line)["reward"] for line in scored.read_text().splitlines()] == list(said.values())
