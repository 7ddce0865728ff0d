"""Files of a ``datasets`` id or folder, read as files are: ``datasets`` itself guesses types from texts.

In its tables "2024-01-05" becomes a date, "007" the number 7, "null" no value, and an integer beyond 64 bits a float.
Here it only finds and downloads the files of a split. What it has to build (scripts, pictures in folders, archives,
files with options of their own) comes from its table.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import fields
from itertools import accumulate
from typing import Any

from gspo_lightning.core.parsing import load_json
from gspo_lightning.data.corpus.arrow import without_padding
from gspo_lightning.data.corpus.files import suffix_of
from gspo_lightning.data.prompts.formats import open_file, read_lines, read_rows
from gspo_lightning.data.prompts.on_demand import OnDemand

Row = dict[str, Any]
_HUB_FILE = re.compile(r"hf://datasets/(?P<repo>[^/@]+/[^/@]+)@(?P<revision>[^/]+)/(?P<file>.+)")
_BUILDERS = {f"datasets.packaged_modules.{kind}.{kind}" for kind in ("json", "csv", "parquet")}
_ANY_VALUE = ("name", "version", "data_dir", "data_files", "description", "features")
"""Fields of a builder's configuration that do not change how a file is read here."""


class Joined(OnDemand[Row]):
    """Rows of several files, one after another."""

    def __init__(self, parts: Sequence[Sequence[Row]]) -> None:
        self.parts = parts
        self._ends = list(accumulate(map(len, parts)))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __iter__(self) -> Iterator[Row]:
        """Yield every row, in order."""
        for part in self.parts:
            yield from part

    def at(self, place: int) -> Row:
        """Return the row at a place."""
        part = bisect_right(self._ends, place)
        return self.parts[part][place - (self._ends[part - 1] if part else 0)]


def read_data_set(path: str, name: str | None, split: str, revision: str | None) -> Sequence[Row]:
    """Return the records of a split, as they were written.

    Args:
        path: hub id, or anything ``datasets.load_dataset`` takes.
        name: configuration.
        split: name of a split, or a slice of it in the words of ``datasets`` (``train[:10%]``).
        revision: of a hub id.

    Raises:
        Exception: whatever ``datasets`` raises for a data set that it cannot load.
    """
    from datasets import Json, load_dataset, load_dataset_builder

    builder = load_dataset_builder(path, name, revision=revision)
    file_rows = _from_files(builder, split)
    if file_rows is not None:
        return file_rows
    table = load_dataset(path, name, split=split, revision=revision)
    decoded = {column for column, feature in table.features.items() if isinstance(feature, Json)}
    rows = []
    for row in table:
        rows.append({k: v if k in decoded or v is None else without_padding(v) for k, v in dict(row).items()})
    return rows


def _from_files(builder: Any, split: str) -> Sequence[Row] | None:
    """Return the records of a split read from its files; None if ``datasets`` has to build them."""
    from datasets import ReadInstruction

    if type(builder).__module__ not in _BUILDERS or not _has_defaults(builder.config):
        return None
    files_of = {str(key): list(map(str, files)) for key, files in builder.config.data_files.items()}
    rows_of = {}
    for name, files in files_of.items():
        if not re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w.-])", split):
            continue  # "train[:10%]+test" names train and test, not train_sft
        local_files = [_local(file) for file in files]
        if not local_files or not all(map(_is_readable, local_files)):
            return None
        rows_of[name] = Joined([_rows(file) for file in local_files])
    if split in rows_of:
        return rows_of[split]
    try:
        slices = ReadInstruction.from_spec(split).to_absolute({name: len(rows) for name, rows in rows_of.items()})
    except ValueError:  # no such split: loading it says which there are
        return None
    return [row for part in slices for row in rows_of[part.splitname][part.from_ : part.to]]


def _has_defaults(config: Any) -> bool:
    """True if a builder's configuration has no option that changes how its files are read."""
    usual = type(config)()
    names = [field.name for field in fields(config) if field.name not in _ANY_VALUE]
    return all(getattr(config, name) == getattr(usual, name) for name in names)


def _local(file: str) -> str:
    """Return the path of a file of a data set on this machine, downloaded if it is on the hub."""
    from huggingface_hub import hf_hub_download

    hub_file = _HUB_FILE.fullmatch(file)
    if hub_file is None:
        return file
    return hf_hub_download(hub_file["repo"], hub_file["file"], repo_type="dataset", revision=hub_file["revision"])


def _is_readable(file: str) -> bool:
    """True if a file here is read as one of records."""
    if "://" in file or "::" in file or not suffix_of(file):
        return False
    return suffix_of(file) != ".json" or _first(file) in ("array", "lines")


def _first(file: str) -> str:
    """Return whether a file of JSON begins with an array or a line with an object; empty if with neither."""
    with open_file(file) as opened:
        line = b""
        while not line.strip():
            line = opened.readline(1 << 29)
            if not line:
                return ""
    if line.lstrip(b"\xef\xbb\xbf \t").startswith(b"["):
        return "array"
    try:
        return "lines" if isinstance(load_json(line.decode("utf-8-sig")), dict) else ""
    except ValueError:
        return ""


def _rows(file: str) -> Sequence[Row]:
    return read_lines(file) if suffix_of(file) == ".json" and _first(file) == "lines" else read_rows(file)
