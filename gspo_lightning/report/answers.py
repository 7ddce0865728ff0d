"""Read and write ``held_out_answers.jsonl``: answers to the same held-out prompts at every evaluation."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["ANSWERS", "AnswersFile", "read_answers"]

ANSWERS = "held_out_answers.jsonl"
Row = Mapping[str, Any]
"""Keys: ``update`` (optimizer steps so far), ``id``, ``prompt``, ``answer``, ``completion``, ``reward``, ``tokens``,
``finish``."""


def read_answers(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of a run, ordered by update; a half-written line of a killed run is left out."""
    file = folder / ANSWERS
    found = []
    for line in file.read_bytes().splitlines() if file.is_file() else ():
        try:
            row = json.loads(line)
            found.append({**row, "update": int(row["update"])})
        except (ValueError, RecursionError, TypeError, KeyError):
            continue
    return sorted(found, key=lambda row: row["update"])


class AnswersFile:
    """Appends rows to the file; a repeated evaluation replaces its old rows.

    Args:
        folder: the run folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._last = max((row["update"] for row in read_answers(folder)), default=-1)

    def add(self, update: int, rows: Sequence[Row]) -> None:
        """Add the answers of the evaluation after this update."""
        if update <= self._last:
            self.cut(update)
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.folder / ANSWERS, "a", encoding="utf-8") as file:
            file.write("".join(_line({"update": update, **row}) for row in rows))
        self._last = update

    def cut(self, first: int) -> None:
        """Drop evaluations from this update on; a resumed run repeats them."""
        from gspo_lightning.resume.files import write_text  # imports torch, which readers do not need

        if (self.folder / ANSWERS).exists():
            kept = [row for row in read_answers(self.folder) if row["update"] < first]
            write_text(self.folder / ANSWERS, "".join(map(_line, kept)))
            self._last = max((row["update"] for row in kept), default=-1)


def _line(row: Row) -> str:
    return json.dumps(row) + "\n"
