"""Answers to the same held-out prompts at every evaluation, scores of all prompts, and thumbnails of pictures."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gspo_lightning.core.parsing import load_json, whole_number
from gspo_lightning.core.temp_files import temp_path

log = logging.getLogger(__name__)
ANSWERS = "held_out_answers.jsonl"
SCORES = "held_out_scores.jsonl"
"""File with one row per evaluation: ``update``, and lists ``id``, ``accuracy`` and ``reward``, one entry per prompt."""
Row = Mapping[str, Any]
"""Keys: ``update`` (optimizer steps so far), ``id``, ``prompt``, ``answer``, ``completion``, ``reward``, ``tokens``,
``finish``."""
FOLDER = "pictures"
_HASH = re.compile(r"[0-9a-f]{64}")


def read_answers(folder: Path, name: str = ANSWERS) -> list[dict[str, Any]]:
    """Return the rows of a file of a run, ordered by update; damaged lines are left out."""
    return whole_and_damaged(folder, name)[0]


def whole_and_damaged(folder: Path, name: str = ANSWERS) -> tuple[list[dict[str, Any]], list[int]]:
    """Return the rows of a run, ordered by update, and the numbers (from 1) of damaged lines: of a killed run, say."""
    file = folder / name
    lines = file.read_bytes().splitlines() if file.is_file() else []
    rows = []
    damaged = []
    for number, line in enumerate(lines, 1):
        try:
            row = load_json(line)
            rows.append({**row, "update": whole_number(row["update"])})
        except (ValueError, TypeError, KeyError):
            damaged.append(number)
    return sorted(rows, key=lambda row: row["update"]), damaged


class AnswersFile:
    """Appends rows to a file of a run folder, which exists; a repeated evaluation replaces its old rows.

    Args:
        folder: the run folder.
        name: of the file, :data:`ANSWERS` or :data:`SCORES`.
    """

    def __init__(self, folder: Path, name: str = ANSWERS) -> None:
        self.folder = folder
        self.name = name
        self._written = False
        self._last = max((row["update"] for row in read_answers(folder, name)), default=-1)

    def add(self, update: int, rows: Sequence[Row]) -> None:
        """Add the answers of the evaluation after this update."""
        if update <= self._last:
            self.cut(update)
        if self._written and not (self.folder / self.name).exists():
            log.warning("%s was removed during the run: its earlier answers are gone", self.folder / self.name)
        with open(self.folder / self.name, "a", encoding="utf-8") as file:
            file.write("".join(_line({"update": update, **row}) for row in rows))
        self._last = update
        self._written = True

    def cut(self, first: int) -> None:
        """Drop evaluations from this update on; a resumed run repeats them."""
        from gspo_lightning.resume.files import write_text  # imports torch, which readers do not need

        if (self.folder / self.name).exists():
            kept = [row for row in read_answers(self.folder, self.name) if row["update"] < first]
            write_text(self.folder / self.name, "".join(map(_line, kept)))
            self._last = max((row["update"] for row in kept), default=-1)


def _line(row: Row) -> str:
    return json.dumps(row) + "\n"


def thumbnail_file(sha256: str) -> str:
    """Return the path of a picture's thumbnail, relative to the run folder."""
    return f"{FOLDER}/{sha256[:32]}.png"


def keep_thumbnails(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write thumbnails (hash of a picture -> PNG) that the run folder lacks, each atomically."""
    for sha256, data in files.items():
        target = folder / thumbnail_file(sha256)
        if not target.exists():
            target.parent.mkdir(exist_ok=True)
            unfinished = temp_path(target)
            unfinished.write_bytes(data)
            os.replace(unfinished, target)


def picture_cell(folder: Path, row: Mapping[str, Any]) -> str:
    """Return Markdown that shows the thumbnails of a row's pictures, and the number of those not shown.

    Args:
        folder: the run folder, beside the page.
        row: holds hashes under ``pictures``. They come from a file: an entry that is not a hash, or has no thumbnail,
            is counted and not shown.
    """
    pictures = row.get("pictures")
    thumbnails = [thumbnail_file(sha256) for sha256 in _hashes(pictures)]
    present = [file for file in thumbnails if (folder / file).is_file()]
    more = _count(pictures) - len(present)
    images = " ".join(f"![picture]({file})" for file in present)
    if images:
        return f"{images} and {more} more" if more else images
    return f"{more} not shown" if more else " "


def copy_thumbnails(folder: Path, rows: Sequence[Mapping[str, Any]], out: Path) -> None:
    """Copy the thumbnails of some rows to a report that is written elsewhere."""
    if out.resolve() == folder.resolve():
        return
    for row in rows:
        for sha256 in _hashes(row.get("pictures")):
            source = folder / thumbnail_file(sha256)
            target = out / thumbnail_file(sha256)
            if source.is_file() and not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                unfinished = temp_path(target)
                shutil.copyfile(source, unfinished)
                os.replace(unfinished, target)


def _hashes(pictures: Any) -> list[str]:
    if not isinstance(pictures, list):
        return []
    return [entry for entry in pictures if isinstance(entry, str) and _HASH.fullmatch(entry)]


def _count(pictures: Any) -> int:
    return len(pictures) if isinstance(pictures, list) else 0
