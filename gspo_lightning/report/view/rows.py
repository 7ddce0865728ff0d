"""Rows of recorded responses, from any of a run's files: one shape, whichever file a row is from."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gspo_lightning.core.errors import is_finite
from gspo_lightning.core.parsing import load_json
from gspo_lightning.report.tokens import TOKENS

COLUMNS = (
    "iteration", "prompt_id", "sample", "row", "update_", "source", "reward", "length", "log_s", "age", "clip",
    "advantage", "finish", "choice", "prompt", "completion",
)  # fmt: skip
"""Columns of the index, in its order; ``update_`` is the number of the update, a word of SQL without the line below."""


def record_files(folder: Path) -> list[Path]:
    """Return the files of a run that hold responses: all that were recorded, then those with tokens."""
    found = sorted(file for file in folder.glob("rollouts/*.jsonl") if file.is_file())
    return [*found, *([folder / TOKENS] if (folder / TOKENS).is_file() else [])]


def parse(line: bytes) -> dict[str, Any] | None:
    """Return a line as a row of a response; None if it is damaged."""
    try:
        row = load_json(line)
    except ValueError:
        return None
    if not isinstance(row, dict):
        return None
    if "prompt_id" not in row:
        row = _of_recording(row)
    known = isinstance(row.get("prompt"), str) and isinstance(row.get("completion"), str)
    return row if known and _whole(row.get("iteration")) is not None else None


def _of_recording(row: dict[str, Any]) -> dict[str, Any]:
    """Return a line of ``data.record_rollouts`` in the shape of :mod:`gspo_lightning.report.tokens`, without tokens."""
    prompt, _, sample = str(row.get("id", "")).partition("/")
    mask = row.get("response_mask")
    messages = row.get("messages") if isinstance(row.get("messages"), list) else None
    return {
        "iteration": row.get("iteration"),
        "prompt_id": _whole(prompt),
        "sample": _whole(sample),
        "prompt": row.get("prompt"),
        "answer": row.get("answer", ""),
        "completion": row.get("completion"),
        "reward": row.get("reward"),
        "parts": row.get("reward_parts") or {},
        "statuses": {k: v for k, v in _mapping(row.get("reward_statuses")).items() if v != "ok"},
        "extra": row.get("reward_extra") or {},
        "finish": row.get("finish_reason", ""),
        "length": mask.count(True) if isinstance(mask, list) else None,
        "source": row.get("source"),
        "missing": row.get("lost", ""),
        "messages": messages or [],
        "turn_rewards": row.get("turn_rewards") or [],
        "tree": row["tree"] if isinstance(row.get("tree"), list) else [],
        "pictures": row["pictures"] if isinstance(row.get("pictures"), list) else [],
        "logged": _mapping(row.get("reward_logged")),
    }


def cells(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the cells of :data:`COLUMNS` of a row; what is no number or text of the right kind is None."""
    get = row.get
    return (
        _whole(get("iteration")), _whole(get("prompt_id")), _whole(get("sample")), _whole(get("row")) or 0,
        _whole(get("update")), _text(get("source")), _real(get("reward")), _whole(get("length")), _real(get("log_s")),
        _whole(get("age")), _real(get("clip")), _real(get("advantage")), _text(get("finish")), _text(get("choice")),
        _text(get("prompt")), _text(get("completion")),
    )  # fmt: skip


def whole_lines(path: Path, start: int) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, line) from a position on; the last line of a file that is being written may be left out."""
    with open(path, "rb") as file:
        file.seek(start)
        for line in file:
            if not line.endswith(b"\n"):
                return
            yield start, line
            start += len(line)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str:
    """Return a value as text; half a character, which JSON may hold, becomes a question mark."""
    if value is None or (type(value) is str and value.isascii()):  # nearly always, in a million rows
        return value or ""
    return str(value or "").encode("utf-8", "replace").decode("utf-8")


def _whole(value: Any) -> int | None:
    if value is None:
        return None
    try:
        found = int(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return found if abs(found) < 2**62 else None


def _real(value: Any) -> float | None:
    if type(value) is float and math.isfinite(value):
        return value
    return float(value) if isinstance(value, int | float) and is_finite(value) else None
