"""Files for tests of ``gspo data``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from gspo_lightning.cli import main

__all__ = ["data", "read", "write"]


def write(path: Path, records: Sequence[dict[str, Any]]) -> Path:
    """JSON lines or Parquet."""
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(records)), path)
    else:
        path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def read(path: Path) -> list[dict[str, Any]]:
    """What :func:`write` wrote."""
    if path.suffix == ".parquet":
        rows: list[dict[str, Any]] = pyarrow.parquet.read_table(path).to_pylist()
        return rows
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def data(*words: object, code: int = 0) -> None:
    """Run ``gspo data``."""
    assert main(["data", *map(str, words)]) == code
