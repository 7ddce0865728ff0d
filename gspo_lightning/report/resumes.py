"""Resumes of a run and the settings that changed with them, in ``resumes.jsonl`` of its folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gspo_lightning.core.parsing import load_json, whole_number

RESUMES = "resumes.jsonl"


def note_resume(folder: Path, update: int, changes: Sequence[str]) -> None:
    """Add a resume; those of a continuation that was given up are dropped.

    Args:
        folder: the run folder.
        update: optimizer steps that the checkpoint had made.
        changes: settings that differ from the checkpoint's, as ``name: before -> now``.

    Raises:
        OSError: the file cannot be written.
    """
    from gspo_lightning.resume.files import write_text  # imports torch, which readers do not need

    kept = [row for row in read_resumes(folder) if row["update"] < update]
    rows = [*kept, {"update": update, "changes": list(changes)}]
    write_text(folder / RESUMES, "".join(json.dumps(row) + "\n" for row in rows))


def read_resumes(folder: Path) -> list[dict[str, Any]]:
    """Return ``update`` and ``changes`` of each resume, in their order; damaged lines are left out."""
    file = folder / RESUMES
    lines = file.read_bytes().splitlines() if file.is_file() else []
    resumes = []
    for line in lines:
        try:
            row = load_json(line)
            resumes.append({"update": whole_number(row["update"]), "changes": [str(text) for text in row["changes"]]})
        except (ValueError, TypeError, KeyError):
            continue
    return resumes
