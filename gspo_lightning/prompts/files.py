"""Prompts from files and from the hub: JSONL, Parquet, or a ``datasets`` id."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gspo_lightning.errors import UserError, did_you_mean, first_line
from gspo_lightning.prompts.base import Columns, PromptSet, Record, map_columns
from gspo_lightning.registry import components

__all__ = ["HubPrompts", "PromptFile", "open_prompts"]


class PromptFile(PromptSet):
    """Records of a ``.jsonl`` or ``.parquet`` file.

    Args:
        path: the file.
        columns: our word -> the file's (``{prompt: question, answer: solution}``); other columns keep their names.
    """

    def __init__(self, path: str, columns: Columns | None = None) -> None:
        self.path, self.columns = path, dict(columns or {})
        if not Path(path).is_file():
            raise UserError("data", f"the prompt file {path!r} does not exist")
        if Path(path).suffix not in (".jsonl", ".parquet"):
            raise UserError("data", f"{path!r} is neither .jsonl nor .parquet")

    def records(self) -> Sequence[Record]:
        """Every record of the file.

        Raises:
            UserError: a malformed line, with its number, or an empty file.
        """
        rows = _read_parquet(self.path) if self.path.endswith(".parquet") else _read_jsonl(self.path)
        if not rows:
            raise UserError("data", f"{self.path!r} holds no records")
        return [_checked(map_columns(row, self.columns), f"{self.path}, record {i}") for i, row in enumerate(rows, 1)]


class HubPrompts(PromptSet):
    """Records of a ``datasets`` id (extra ``data``).

    Args:
        path: hub id, or anything ``datasets.load_dataset`` takes.
        name: configuration of the data set.
        split: split to read.
        columns: our word -> theirs.
    """

    def __init__(
        self, path: str, name: str | None = None, split: str = "train", columns: Columns | None = None
    ) -> None:
        self.path, self.name, self.split, self.columns = path, name, split, dict(columns or {})

    def records(self) -> Sequence[Record]:
        """Every record of the split.

        Raises:
            UserError: ``datasets`` is not installed, or the data set cannot be loaded.
        """
        try:
            from datasets import load_dataset
        except ImportError as error:
            raise UserError(
                "data", f"{self.path!r} needs the package datasets", fix="pip install 'gspo_lightning[data]'"
            ) from error
        try:
            rows = load_dataset(self.path, self.name, split=self.split)
        except Exception as error:
            cause = first_line(error)
            raise UserError(
                "data",
                f"{self.path!r} is no file here, and cannot be loaded as a data set: {cause}",
                fix="give a .jsonl or .parquet file, a hub id you can reach, or a prompt set such as ChainTask",
            ) from error
        where = f"{self.path}[{self.split}]"
        return [_checked(map_columns(dict(r), self.columns), f"{where}, record {i}") for i, r in enumerate(rows, 1)]


def open_prompts(source: PromptSet | str, columns: Columns) -> PromptSet:
    """A prompt set as it is, a path with a known suffix as a file, anything else as a hub id (``id:name:split``)."""
    if isinstance(source, PromptSet):
        return source
    if Path(source).suffix in (".jsonl", ".parquet", ".json", ".csv") or Path(source).is_file():
        return PromptFile(source, columns)
    if source.isidentifier() and (near := did_you_mean(source, components("prompts"))).startswith("did you mean"):
        raise UserError("data", f"{source!r} is neither a file nor a registered prompt set; {near}")
    path, name, split = [*source.split(":"), "", ""][:3]
    return HubPrompts(path, name or None, split or "train", columns)


def _read_jsonl(path: str) -> list[dict[str, Any]]:
    rows = []
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line.decode("utf-8-sig"))  # some editors put a byte-order mark first
            except UnicodeDecodeError as error:
                raise UserError(f"{path}:{number}", f"is not UTF-8: {error.reason}", fix="save it as UTF-8") from error
            except json.JSONDecodeError as error:
                raise UserError(
                    f"{path}:{number}", f"is not JSON: {error.msg} at column {error.colno}", fix="one object a line"
                ) from error
            if not isinstance(row, dict):
                raise UserError(f"{path}:{number}", f"is a JSON {type(row).__name__}, not an object")
            rows.append(row)
    return rows


def _read_parquet(path: str) -> list[dict[str, Any]]:
    import pyarrow.lib
    import pyarrow.parquet

    try:
        rows: list[dict[str, Any]] = pyarrow.parquet.read_table(path).to_pylist()
    except (pyarrow.lib.ArrowInvalid, OSError) as error:
        raise UserError("data", f"{path!r} is not a Parquet file: {error}") from error
    return rows


def _checked(record: dict[str, Any], where: str) -> Record:
    prompt = record.get("prompt")
    if prompt is None:
        raise UserError(
            "data.columns",
            f"{where} has no column 'prompt'; it has {', '.join(sorted(record)) or 'none'}",
            fix="map it: data.columns: {prompt: <name of the column>}",
        )
    messages = isinstance(prompt, list) and all(isinstance(m, dict) and "role" in m for m in prompt) and prompt
    if not messages and not (isinstance(prompt, str) and prompt):
        raise UserError("data", f"{where}: 'prompt' must be a non-empty text or a list of chat messages")
    return record
