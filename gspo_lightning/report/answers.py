"""The same held-out prompts with their answers at every evaluation: ``held_out_answers.jsonl`` of a run folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["ANSWERS", "AnswersFile", "read_answers"]

ANSWERS = "held_out_answers.jsonl"
Row = Mapping[str, Any]
"""``update`` (optimizer steps so far), ``id``, ``prompt``, ``answer``, ``completion``, ``reward``, ``tokens``,
``finish``."""


def read_answers(folder: Path) -> list[dict[str, Any]]:
    """The rows of a run, in the order of their updates; a line that a killed run has left half written is left out."""
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
    """Rows at the end of the file; those of an evaluation that is made once more take the place of the old ones.

    Args:
        folder: of the run.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._last = max((row["update"] for row in read_answers(folder)), default=-1)

    def add(self, update: int, rows: Sequence[Row]) -> None:
        """The answers of the evaluation after so many updates."""
        if update <= self._last:
            self.cut(update)
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.folder / ANSWERS, "a", encoding="utf-8") as file:
            file.write("".join(_line({"update": update, **row}) for row in rows))
        self._last = update

    def cut(self, first: int) -> None:
        """Forget evaluations from this update on; a resumed run makes them again."""
        from gspo_lightning.resume.files import write_text  # torch comes with it, and who only reads needs none

        if (self.folder / ANSWERS).exists():
            kept = [row for row in read_answers(self.folder) if row["update"] < first]
            write_text(self.folder / ANSWERS, "".join(map(_line, kept)))
            self._last = max((row["update"] for row in kept), default=-1)


def _line(row: Row) -> str:
    return json.dumps(row) + "\n"
